"""A comparison's report holds the tables of devices of one or two cells at a time, whatever their number."""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compared import done, values
from marks import slow_but
from partita.data.arrow import Table, read_table
from partita.report.comparison.page import comparison_page
from partita.report.side_by_side.page import side_by_side_page
from partita.report.side_by_side.sources import read_source
from partita.report.tables.comparison import write_comparison_tables
from partita.studies.comparison import reopen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of five cells, with curves and devices that training has not seen."""
    folder = tmp_path_factory.mktemp("memory") / "grid"
    done(folder, values("fedalt", "ditto", compare={"seeds": 1}, evaluate={"every": 1, "unseen": 0.3}))
    return folder


class Reader:
    """Reads tables, and counts those that are held at the same time."""

    def __init__(self) -> None:
        self._tables: list[weakref.ref[Table]] = []
        self.most = 0

    @property
    def read(self) -> int:
        return len(self._tables)

    def __call__(self, path: Path) -> Table:
        table = read_table(path)
        self._tables.append(weakref.ref(table))
        self.most = max(self.most, sum(reference() is not None for reference in self._tables))
        return table


def tables(folder: Path) -> Any:
    return write_comparison_tables(reopen(folder), {})


def page(folder: Path) -> Any:
    return comparison_page(reopen(folder))


def side_by_side(folder: Path) -> Any:
    return side_by_side_page([read_source(folder, "one"), read_source(folder / "cells/fedavg-3", "two")])


@pytest.mark.parametrize(
    "write", slow_but([tables, page, side_by_side], tables), ids=lambda write: write.__name__
)
def test_few_tables_of_devices_are_held_at_a_time(
    write: Callable[[Path], Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader()
    monkeypatch.setattr("partita.runs.folder.read_table", reader)

    made = write(folder)

    assert made
    assert reader.read >= len(list((folder / "cells").glob("*-?")))
    assert reader.most <= 2
