"""The tabular task: classification and regression."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from partita import FedSim, run
from partita.data.rows import BadData
from partita.errors import ConfigError
from partita.models.parts import named_partition
from partita.tasks.derived import derived_bytes
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
    task = tabular(data=str(write(tmp_path / "t.parquet", rows())), standardize=False)

    inputs, labels = task.devices["d1"]["train"]

    assert inputs.tolist() == [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]
    assert labels.tolist() == [1, 0, 1]
    assert labels.dtype == torch.long
    assert task.headline == "accuracy"
    result = run(task, named_partition(task.model(), "output"), FedSim(shared_lr=0.1), rounds=1)
    assert result.summary["stages"]["personalized"]["devices"] == 2


def test_columns_and_label_can_be_chosen_for_regression(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", rows())

    task = tabular(data=str(path), label="height", columns=["label"], regression=True, standardize=False)

    inputs, targets = task.devices["d0"]["train"]
    assert inputs.tolist() == [[1.0], [0.0], [1.0]]
    assert targets.tolist() == [1.0, 2.0, 3.0]
    assert task.metrics["mean absolute error"].direction == "down"
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

    task = tabular(data=str(write(tmp_path / "t.parquet", given)), standardize=False)

    inputs, _ = task.devices["d1"]["train"]

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


def numbers(path: Path) -> Path:
    """Write a table with a column of training values 1, 2, 3 and 6, a constant and a test value of 9."""
    values = {"a": [("train", 1), ("train", 2), ("test", 9)], "b": [("train", 3), ("train", 6), ("test", 9)]}
    found = [
        {"device": device, "split": split, "x": value, "same": 0.1, "label": number % 2}
        for device, own in values.items()
        for number, (split, value) in enumerate(own)
    ]
    return write(path, found, group=2)


def test_columns_are_standardized_by_the_training_rows_of_all_devices(tmp_path: Path) -> None:
    # The mean of 1, 2, 3 and 6 is 3, and their variance (4 + 1 + 0 + 9) / 4 = 3.5.
    task = tabular(data=str(numbers(tmp_path / "t.parquet")))

    inputs, _ = task.devices["b"]["train"]
    test, _ = task.devices["a"]["test"]

    std = 3.5**0.5
    assert inputs[:, 0].tolist() == pytest.approx([0.0, 3 / std])
    assert test[:, 0].tolist() == pytest.approx([6 / std])
    assert inputs[:, 1].tolist() == [0.0, 0.0]
    assert task.derived == {
        "kind": "tabular",
        "columns": ["x", "same"],
        "classes": 2,
        "mean": [3.0, 0.1],
        "std": [pytest.approx(std), 1.0],
    }


@pytest.mark.parametrize(
    "options", [{}, {"validation": 0.25}, {"max_examples": 7}, {"devices": 4}, {"split": "time"}]
)
def test_standardized_training_inputs_have_mean_0_and_standard_deviation_1(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    generator = torch.Generator().manual_seed(1)
    values = (1e4 + 100 * torch.randn(12, 20, 2, generator=generator)).double().tolist()
    found = [
        {"device": f"d{device:02}", "x": x, "y": y, "label": 0, "time": x}
        for device, own in enumerate(values)
        for x, y in own
    ]

    task = tabular(data=str(write(tmp_path / "t.parquet", found)), classes=2, **options)

    inputs = torch.cat([task.devices[device]["train"][0] for device in task.devices]).double()
    assert inputs.mean(dim=0).tolist() == pytest.approx([0.0, 0.0], abs=1e-5)
    assert inputs.std(dim=0, correction=0).tolist() == pytest.approx([1.0, 1.0], abs=1e-5)


def test_incomplete_rows_and_missing_values_do_not_count_in_the_standardization(tmp_path: Path) -> None:
    path = numbers(tmp_path / "t.parquet")
    bad = [
        {"device": "b", "split": "train", "x": x, "same": same, "label": 0}
        for x, same in ((None, 5.0), (7, None), (7, float("nan")), (7, float("inf")))
    ]
    with_bad = write(tmp_path / "bad.parquet", [*pq.read_table(path).to_pylist(), *bad])

    assert tabular(data=str(with_bad), skip_bad=True).derived == tabular(data=str(path)).derived


def test_derived_values_of_another_table_can_be_used(tmp_path: Path) -> None:
    given = tabular(data=str(numbers(tmp_path / "t.parquet"))).derived
    (tmp_path / "derived.json").write_bytes(derived_bytes(given))
    own = [
        {"device": "c", "split": s, "x": 10, "same": 0.2, "more": 1, "label": 0} for s in ("train", "test")
    ]
    options = {"data": str(write(tmp_path / "c.parquet", own)), "derived": str(tmp_path / "derived.json")}

    task = tabular(**options)

    inputs, _ = task.devices["c"]["train"]
    assert inputs.tolist() == [[pytest.approx(7 / 3.5**0.5), pytest.approx(0.1)]]
    assert task.derived == given
    assert task.model_options["classes"] == 2
    for changes, message in (
        ({"standardize": False}, "The file `derived` has a value `mean`"),
        ({"regression": True}, "The file `derived` has a value `classes`"),
        ({"classes": 3}, "`classes` must be 2, as the file `derived` says, got 3"),
        ({"columns": ["x"]}, "`columns` must be .*, as the file `derived` says"),
        ({"derived": options["data"]}, "Cannot read the derived values"),
    ):
        with pytest.raises(ValueError, match=message):
            tabular(**{**options, **changes})


def test_a_column_of_strings_cannot_be_an_input(tmp_path: Path) -> None:
    path = str(write(tmp_path / "t.parquet", rows()))

    with pytest.raises(ConfigError, match=r"`columns` must name numeric columns, got `name` \(string\)."):
        tabular(data=path, columns=["name"])
