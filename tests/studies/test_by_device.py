"""Values by device, packed, against plain dictionaries."""

import tracemalloc
from typing import Any

import pytest

from partita.data.arrow import Table, table_of
from partita.studies.by_device import Positions, metrics_by_stage, training_examples

COLUMNS = {"stage": str, "device": str, "split": str, "examples": int, "weight": int, "metric": float}


def table(*rows: tuple[str, str, str, int, float | None]) -> Table:
    """Measurements: stage, device, split, examples, which are the weight too, and metric."""
    return table_of(
        ({**dict(zip(COLUMNS, (*row[:4], row[3], row[4]), strict=True))} for row in rows), COLUMNS
    )


MEASURED = table(
    ("pretrained", "a", "train", 7, 0.1),
    ("pretrained", "a", "test", 2, 0.5),
    ("pretrained", "b", "test", 3, None),
    ("finetuned", "a", "train", 7, 0.2),
    ("finetuned", "a", "test", 2, 0.75),
    ("finetuned", "b", "test", 3, 0.25),
)


def test_metrics_are_by_stage_and_device_on_the_split_that_counts() -> None:
    found = metrics_by_stage(MEASURED, "metric", {"split": "test"}, {})

    assert found == {"pretrained": {"a": (0.5, 2)}, "finetuned": {"a": (0.75, 2), "b": (0.25, 3)}}
    assert "b" not in found["pretrained"]
    with pytest.raises(KeyError, match="b"):
        found["pretrained"]["b"]


def test_stages_that_failed_or_have_no_metric_are_left_out() -> None:
    summary = {"split": "test", "failed": {"finetuned": {}}}

    assert metrics_by_stage(MEASURED, "metric", summary, {}).keys() == {"pretrained"}
    assert metrics_by_stage(MEASURED, "metric", {"split": "validation"}, {}) == {}


def test_every_device_has_a_number_of_training_examples() -> None:
    assert training_examples(MEASURED, {}) == {"a": 7, "b": 0}


def test_devices_of_later_cells_change_nothing_in_earlier_ones() -> None:
    positions: Positions = {}
    before = metrics_by_stage(MEASURED, "metric", {"split": "test"}, positions)["finetuned"]
    later = table(("finetuned", "c", "test", 1, 1.5), ("finetuned", "b", "test", 1, 2.5))

    after = metrics_by_stage(later, "metric", {"split": "test"}, positions)["finetuned"]

    assert positions == {"a": 0, "b": 1, "c": 2}
    assert dict(before) == {"a": (0.75, 2), "b": (0.25, 3)}
    assert "c" not in before
    assert list(after.items()) == [("b", (2.5, 1)), ("c", (1.5, 1))]


def test_a_cell_takes_less_than_twenty_bytes_a_device_once_the_ids_are_known() -> None:
    devices = 5_000
    rows: Any = (
        ("finetuned", f"device-{number:06}", "test", number, number / 7) for number in range(devices)
    )
    cell, positions = table(*rows), dict[str, int]()
    first = metrics_by_stage(cell, "metric", {"split": "test"}, positions)

    tracemalloc.start()
    begin = tracemalloc.get_traced_memory()[0]
    cells = [metrics_by_stage(cell, "metric", {"split": "test"}, positions) for _ in range(4)]
    grown = tracemalloc.get_traced_memory()[0] - begin
    tracemalloc.stop()

    assert cells == [first] * 4
    assert len(first["finetuned"]) == devices
    # A weight, a metric and a mark: 17 bytes.
    assert grown / 4 < 20 * devices
