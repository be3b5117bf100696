"""A report is written from the folder alone: no task, no model, no code of the user's, one read per run."""

import importlib
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import partita
from compared import done, values
from partita import FedAlt, Partition
from partita.data.arrow import read_table
from partita.report import write
from report.run.test_page import ParsedPage, finished
from small import affine_task

pytestmark = pytest.mark.usefixtures("reports", "no_figures")
BUILDERS = (
    "partita.config.building.build",
    "partita.config.building.build_partition",
    "partita.config.loading.load",
    "partita.config.partitions.build_partition",
    "partita.config.provenance.find_own_code",
    "partita.config.tasks.build_task",
    "partita.studies.begin.build",
    "partita.studies.same_task.initial_model",
    "partita.studies.same_task.build_task",
    "partita.studies.begin.find_own_code",
    "partita.studies.compare.find_own_code",
    "partita.studies.describe.describe",
    "partita.tasks.build.build_model",
)


def run(folder: Path) -> Path:
    return finished(folder)


def comparison(folder: Path) -> Path:
    done(folder, values("finetune", "fedalt", compare={"seeds": 1}))
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[Path]:
    """How often each table of devices is read."""
    counts: Counter[Path] = Counter()

    def counting(path: Path) -> Any:
        counts[path] += 1
        return read_table(path)

    monkeypatch.setattr("partita.runs.folder.read_table", counting)
    return counts


@pytest.mark.parametrize(("make", "most"), [(run, 1), pytest.param(comparison, 13, marks=pytest.mark.slow)])
def test_a_report_builds_nothing_and_reads_the_tables_of_devices_a_fixed_number_of_times(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reads: Counter[Path],
    make: Callable[[Path], Path],
    most: int,
) -> None:
    # The page of a comparison holds the table of one run at a time, and each of its parts reads it again.
    folder = make(tmp_path / "finished")
    reads.clear()

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("A report must not build anything.")

    for name in BUILDERS:  # A module that is imported later would keep what refuses.
        importlib.import_module(name.rpartition(".")[0])
    for name in BUILDERS:
        monkeypatch.setattr(name, refuse)
    page = write.write_report(folder)

    assert page.is_file()
    assert set(reads) == {*folder.rglob("devices.parquet")}
    assert max(reads.values()) <= most


OWN_CODE = """
from compared import plain

def task():
    return plain()
"""


def test_a_report_does_not_import_the_code_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_task.py").write_text(OWN_CODE)
    monkeypatch.syspath_prepend(tmp_path)
    folder = finished(tmp_path / "run", task={"kind": "own_task:task"})
    monkeypatch.delitem(sys.modules, "own_task")
    (tmp_path / "own_task.py").unlink()

    assert write.write_report(folder).is_file()

    assert "own_task" not in sys.modules


def test_a_run_from_python_has_a_report_without_a_command(tmp_path: Path) -> None:
    task = affine_task()
    partition = Partition(task.model(), personal="offset")
    partita.run(task, partition, FedAlt(shared_lr=0.1), rounds=2, out=tmp_path / "mine")

    page = ParsedPage(write.write_report(tmp_path / "mine"))

    assert page.texts["h1"] == ["mine"]
    assert {"Start", "FedAlt"} <= set(page.texts["th"])
    assert not [text for text in page.texts["dt"] if "command" in text.lower()]
