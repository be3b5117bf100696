"""Data that are the same, and data that only look the same."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from partita.report.side_by_side.comparable import differing_data, unrecorded_data
from partita.report.side_by_side.sources import Source, SourceModel

TABLE = "1 rows, sha256 a"


def source(weight: int = 3, reported: str = "test", **data: str) -> Source:
    """A source of which only the data matter."""
    keys = {f"task.{key}": text for key, text in data.items()}
    model = SourceModel(title="", part="", by_seed={1: {"d0": (0.5, weight)}}, rounds=0, sent=0)
    given: dict[str, Any] = dict.fromkeys((field.name for field in fields(Source)), None)
    return Source(**given | {"data": keys, "reference": model, "split": reported})


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"kind": "image", "data": TABLE}, []),
        ({"kind": "image", "data": "1 rows, sha256 b"}, ["task.data"]),
        ({"kind": "text", "data": TABLE}, ["task.kind"]),
        ({"kind": "image"}, ["task.data"]),
    ],
)
def test_a_table_is_known_by_its_digest(other: dict[str, str], expected: list[str]) -> None:
    assert differing_data(source(kind="image", data=TABLE), source(**other)) == expected


@pytest.mark.parametrize("key", ["size", "flip", "mean", "standardize", "columns", "max_examples", "metrics"])
def test_a_setting_that_leaves_test_rows_and_labels_alone_is_harmless(key: str) -> None:
    given = {"kind": "tabular", "data": TABLE}

    assert not differing_data(source(**given), source(**given, **{key: "1"}))


@pytest.mark.parametrize(
    ("key", "first", "second"),
    [
        ("label", '"dose"', '"sex"'),
        ("split", '"time"', '"hash"'),
        ("group", '"patient"', '""'),
        ("regression", "true", "false"),
        ("classes", "2", "0"),
        ("device", '"clinic"', '"doctor"'),
        ("test", "0.2", "0.3"),
        ("vocabulary", "sha256 a", "sha256 b"),
        ("key_of_next_year", "1", "2"),
    ],
)
def test_any_other_setting_makes_other_data_though_the_table_is_the_same(
    key: str, first: str, second: str
) -> None:
    one, two = (source(kind="tabular", data=TABLE, **{key: value}) for value in (first, second))

    assert differing_data(one, two) == [f"task.{key}"]


def test_without_a_table_every_setting_counts_but_metrics_and_validation() -> None:
    assert differing_data(source(kind="synthetic"), source(kind="synthetic", devices="30"))
    assert not differing_data(source(kind="synthetic"), source(kind="synthetic", validation="0.2"))


def test_other_validation_rows_are_other_data_where_they_are_reported_on() -> None:
    one, two = (source(reported="validation", kind="image", data=TABLE, validation=v) for v in ("0.1", "0.2"))

    assert differing_data(one, two) == ["task.validation"]


def test_a_device_with_another_number_of_examples_is_another_one() -> None:
    assert differing_data(source(kind="python"), source(kind="python", weight=4)) == ["examples of devices"]


def test_the_data_of_a_comparison_from_python_are_not_recorded_either() -> None:
    # A comparison has no `origin`: its config could be read, only its task is not in it.
    folder = SimpleNamespace(values={"task": {"kind": "python"}, "made_with": {"partita": "0.2.0"}})
    own = SimpleNamespace(folder=folder)

    (said,) = unrecorded_data([own, own])  # pyright: ignore[reportArgumentType]

    assert said == "The data of a task from Python are not recorded: equal ids are taken for one device."
