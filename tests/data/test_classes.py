"""The number of classes, from the labels of seen devices."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from partita.data.classes import count_classes
from partita.data.options import TableOptions
from partita.data.table import DeviceTable
from partita.errors import ConfigError
from tables import split_of, texts, write


def labeled(path: Path, largest: Mapping[str, int]) -> Path:
    return write(path, [row | {"label": largest[row["device"]]} for row in texts(split=split_of)])


def test_a_class_that_only_unseen_devices_have_must_be_declared(tmp_path: Path) -> None:
    path = labeled(tmp_path / "t.parquet", {"d0": 2, "d1": 5, "d2": 1})
    columns = ("text", "label")

    with pytest.raises(ConfigError, match=r"row 6, device 'd1': `label` is 5, which no device in training"):
        count_classes(DeviceTable(path, TableOptions(), columns, unseen=0.3), "label")

    assert count_classes(DeviceTable(path, TableOptions(), columns), "label") == 6
    assert count_classes(DeviceTable(path, TableOptions(skip_bad=True), columns, unseen=0.3), "label") == 3
