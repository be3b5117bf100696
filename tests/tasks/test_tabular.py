"""The tabular task: classes and numbers from numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from partita import FedSim, run
from partita.data.rows import BadData
from partita.errors import ConfigError
from partita.models.parts import named_partition
from partita.tasks.tabular import tabular
from tables import write


def rows(**changes: Any) -> list[dict[str, Any]]:
    return [
        {
            "device": f"d{device}",
            "split": "test" if number == 0 else "train",
            "height": float(number),
            "count": number + device,
            "name": "x",
            "label": number % 2,
            **changes,
        }
        for device in range(2)
        for number in range(4)
    ]


def test_all_columns_of_numbers_are_told_from(tmp_path: Path) -> None:
    task = tabular(data=str(write(tmp_path / "t.parquet", rows())))

    numbers, labels = task.devices["d1"]["train"]

    assert numbers.tolist() == [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]
    assert labels.tolist() == [1, 0, 1]
    assert labels.dtype == torch.long
    assert task.headline == "accuracy"
    result = run(task, named_partition(task.model(), "output"), FedSim(shared_lr=0.1), rounds=1)
    assert result.summary["stages"]["personalised"]["devices"] == 2


def test_columns_and_label_can_be_named_and_a_number_told(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", rows())

    task = tabular(data=str(path), label="height", columns=["label"], regression=True)

    numbers, targets = task.devices["d0"]["train"]
    assert numbers.tolist() == [[1.0], [0.0], [1.0]]
    assert targets.tolist() == [1.0, 2.0, 3.0]
    assert task.metrics["error"].direction == "down"
    result = run(task, named_partition(task.model(), "input"), FedSim(shared_lr=0.01), rounds=1)
    assert result.summary["direction"] == "down"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"height": float("nan")}, "`height` is nan"),
        ({"height": None}, "`height` must be a number, got None"),
        ({"label": 5}, "`label` must be a whole number from 0 to 1, got 5"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    given = rows()
    given[2] |= change

    task = tabular(data=str(write(tmp_path / "t.parquet", given)), classes=2)

    with pytest.raises(BadData, match=f"`t.parquet`, row 2, device 'd0': {words}"):
        _ = task.devices["d0"]["train"]


def test_a_table_without_numbers_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [{"device": "a", "name": "x", "label": 1}])

    with pytest.raises(ConfigError, match="has no column of numbers besides"):
        tabular(data=str(path))
