"""The tabular task: classification and regression."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
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


def test_all_numeric_columns_are_inputs(tmp_path: Path) -> None:
    task = tabular(data=str(write(tmp_path / "t.parquet", rows())))

    inputs, labels = task.devices["d1"]["train"]

    assert inputs.tolist() == [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]
    assert labels.tolist() == [1, 0, 1]
    assert labels.dtype == torch.long
    assert task.headline == "accuracy"
    result = run(task, named_partition(task.model(), "output"), FedSim(shared_lr=0.1), rounds=1)
    assert result.summary["stages"]["personalized"]["devices"] == 2


def test_columns_and_label_can_be_chosen_for_regression(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", rows())

    task = tabular(data=str(path), label="height", columns=["label"], regression=True)

    inputs, targets = task.devices["d0"]["train"]
    assert inputs.tolist() == [[1.0], [0.0], [1.0]]
    assert targets.tolist() == [1.0, 2.0, 3.0]
    assert task.metrics["error"].direction == "down"
    result = run(task, named_partition(task.model(), "input"), FedSim(shared_lr=0.01), rounds=1)
    assert result.summary["direction"] == "down"


def test_columns_with_another_role_are_not_inputs(tmp_path: Path) -> None:
    about = {"time": 1, "when": 2, "id": 3, "row": 4, "group": 5, "patient": 6}
    path = str(write(tmp_path / "t.parquet", rows(**about)))

    plain = tabular(data=path)
    named = tabular(data=path, time="when", id="row", group="patient")

    assert plain.model_options["inputs"] == 2 + 3
    assert named.model_options["inputs"] == 2


def test_booleans_and_decimals_are_numbers(tmp_path: Path) -> None:
    given = rows(member=True, price=Decimal("2.50"))

    inputs, _ = tabular(data=str(write(tmp_path / "t.parquet", given))).devices["d1"]["train"]

    assert inputs.tolist() == [[1.0, 2.0, 1.0, 2.5], [2.0, 3.0, 1.0, 2.5], [3.0, 4.0, 1.0, 2.5]]


def test_a_warning_lists_the_columns_that_are_not_numeric(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(write(tmp_path / "t.parquet", rows(words=["a"])))

    tabular(data=path)
    tabular(data=path, columns=["height"])

    (record,) = caplog.records
    assert record.getMessage() == (
        f"Columns of `{path}` that are not numeric are ignored: `name` (string), "
        f"`words` ({pa.list_(pa.string())})."
    ).replace("item", "element")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": ["height", "label"]}, "`columns` must not contain `label`"),
        ({"classes": -1}, "`classes` must be 0 or above, got -1."),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tabular(data=str(write(tmp_path / "t.parquet", rows())), **settings)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"height": float("nan")}, "`height` must be a finite number, got nan"),
        ({"height": None}, "`height` must be a number, got None"),
        ({"label": 5}, "`label` must be a whole number from 0 to 1, got 5"),
    ],
)
def test_a_bad_row_is_an_error(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    given = rows()
    given[2] |= change

    task = tabular(data=str(write(tmp_path / "t.parquet", given)), classes=2)

    with pytest.raises(BadData, match=f"`t.parquet`, row 2, device 'd0': {reason}"):
        _ = task.devices["d0"]["train"]


def test_a_table_without_numbers_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [{"device": "a", "name": "x", "label": 1}])

    with pytest.raises(ConfigError, match="has no numeric column besides"):
        tabular(data=str(path))
