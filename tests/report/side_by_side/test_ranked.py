"""Models of several sources on the devices and seeds that all have, worked by hand."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from partita.report.page import Page
from partita.report.side_by_side.page import side_by_side_page
from partita.report.side_by_side.sources import Source, SourceModel

BySeed = Mapping[int, list[float]]


def source(name: str, models: Mapping[str, BySeed], settings: Mapping[str, Any] | None = None) -> Source:
    """A source with devices d0, d1, ... of equal weight; its first model is the reference."""
    own = [
        SourceModel(
            title=title,
            part="",
            by_seed={
                seed: {f"d{at}": (value, 1) for at, value in enumerate(values)}
                for seed, values in by_seed.items()
            },
            rounds=1,
            sent=1,
        )
        for title, by_seed in models.items()
    ]
    values = {"made_with": {}, "task": {"kind": "digits"}}
    folder: Any = SimpleNamespace(path=Path(name), config_text="", values=values)
    return Source(
        name=name,
        folder=folder,
        metric="accuracy",
        direction="up",
        split="test",
        models=own,
        reference=own[0],
        reference_is="the last model of the first run",
        data={},
        settings=settings or {},
        examples={},
        notes=[],
    )


def columns(page: Page, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(datum[name] for name in names) for datum in page.data["models"]]


def test_the_best_is_over_the_seeds_in_common_whoever_has_more() -> None:
    first = source("A", {"Ref": {1: [0.5, 0.5], 2: [0.9, 0.9]}, "Good": {1: [0.6, 0.8], 2: [0.9, 0.9]}})
    second = source("B", {"One": {1: [0.8, 1.0]}, "Twin": {1: [1.0, 0.8]}, "Low": {1: [0.1, 0.1]}})

    page = side_by_side_page([first, second])

    # On seed 1: 0.5 and 0.7 in A; 0.9, 0.9 and 0.1 in B.
    assert page.answer.startswith(
        "B: One has the best test accuracy of 5 models, over the 1 seed that all have: 0.9000, "
    )
    assert page.details[0] == "As good as the best: B: Twin."
    assert not any("never called best" in sentence for sentence in page.details)


def test_a_model_without_a_seed_in_common_is_never_called_best() -> None:
    first = source(
        "A",
        {
            "Ref": {1: [0.5, 0.5, 0.5], 2: [0.7, 0.7, 0.7], 3: [0.9, 0.9, 0.9]},
            "OneSeed": {2: [0.92, 0.91, 0.93]},
            "Solid": {1: [0.6, 0.6, 0.61], 2: [0.78, 0.8, 0.79], 3: [0.99, 1.0, 0.99]},
        },
    )
    second = source("B", {"x": {1: [0.1, 0.1, 0.1]}})

    page = side_by_side_page([first, second])

    # On seed 1, the only one of B: (0.6 + 0.6 + 0.61) / 3, 0.5 for the reference.
    assert page.answer.startswith(
        "A: Solid has the best test accuracy of the 3 models with all devices and seeds, over the 1 seed that "
        "all have: 0.6033, 0.1033 better than A: Ref (95 % interval "
    )
    assert page.details == [
        "The reference is A: Ref, the last model of the first run.",
        "The seeds are not the same (3 in A, 1 in B; 1 in common). This result and the chart are over those in "
        "common, the table over all of each.",
        "Without some of these devices or seeds, so never called best: A: OneSeed.",
    ]


def test_means_order_and_dots_are_over_the_devices_that_all_have() -> None:
    # Alone, a's Good is 0.7 on three devices, but 0.9 on the two that b has too, above b's 0.8.
    first = source("a", {"Ref": {1: [0.5, 0.7, 0.0]}, "Good": {1: [0.9, 0.9, 0.3]}})
    second = source("b", {"Mid": {1: [0.8, 0.8]}})

    page = side_by_side_page([first, second])

    assert [datum["model"] for datum in page.data["models"]] == ["a: Good", "b: Mid", "a: Ref"]
    for mean, point in columns(page, "mean", "point"):
        assert point == pytest.approx(mean)
    assert [mean for (mean,) in columns(page, "mean")] == pytest.approx([0.9, 0.8, 0.6])
    assert page.answer.startswith(
        "a: Good has the best test accuracy of 3 models, over the 2 devices that all have: 0.9000, no clear "
        "difference from a: Ref (+0.3000, "
    )
    table = page.sections[-1].table
    assert table
    assert [record["accuracy mean"] for record in table.records] == pytest.approx([0.4, 0.7, 0.8])
    assert "personal part" not in table.columns


def test_a_model_that_lacks_devices_has_its_mean_and_no_bar_and_comes_last() -> None:
    first = source("a", {"Ref": {1: [0.5, 0.7]}, "Failed": {1: [0.9]}})

    page = side_by_side_page([first, source("b", {"Mid": {1: [0.8, 0.8]}})])

    assert columns(page, "model", "point", "low")[-1] == ("a: Failed", 0.9, None)
    assert page.answer.startswith(
        "b: Mid has the best test accuracy of the 2 models with all devices and seeds:"
    )


def test_the_change_of_a_device_is_paired_by_seed() -> None:
    # d0 is better by 0.1 on seed 1, the only one of the reference; seed 2 is an easy one.
    first, second = source("a", {"Ref": {1: [0.5]}}), source("b", {"Own": {1: [0.6], 2: [0.9]}})

    (_, own) = side_by_side_page([first, second]).data["devices"]

    assert own["change"] == pytest.approx(0.1)
    assert own["metric"] == pytest.approx(0.75)


@pytest.mark.slow
def test_the_table_of_devices_says_that_it_has_means_over_seeds_where_it_has() -> None:
    one, two = source("a", {"Ref": {1: [0.5]}}), source("b", {"Own": {1: [0.6], 2: [0.9]}})

    assert side_by_side_page([one, two]).metric == "test accuracy, mean over a model's own seeds,"
    assert side_by_side_page([one, source("b", {"Own": {1: [0.6]}})]).metric == "test accuracy"


def test_the_command_of_a_folder_can_be_copied_and_a_folder_without_one_is_named() -> None:
    one, two = source("a", {"Ref": {1: [0.5]}}), source("b", {"Own": {1: [0.6]}})
    one.folder.values["made_with"]["command"] = "partita run out=a"

    assert side_by_side_page([one, two]).facts == {"a": "partita run out=a", "b": "b"}


def test_without_a_seed_in_common_nothing_is_paired_and_means_are_over_their_own() -> None:
    page = side_by_side_page([
        source("a", {"Ref": {1: [0.5, 0.6]}}),
        source("b", {"Own": {2: [0.7, 0.8]}}),
    ])  # fmt: skip

    assert page.answer == "b: Own has the best test accuracy of 2 models: 0.7500."
    assert page.details[1] == (
        "The seeds are not the same (1 in a, 1 in b; 0 in common). Every mean is over its own, and no difference "
        "between them is paired."
    )


def test_sources_without_a_device_in_common_are_not_ranked_together() -> None:
    one, two = source("a", {"Ref": {1: [0.5]}}), source("b", {"Own": {1: [0.7]}})
    moved = [SourceModel(title="Own", part="", by_seed={1: {"other": (0.7, 1)}}, rounds=1, sent=1)]
    two = Source(**{**vars(two), "models": moved, "reference": moved[0]})

    page = side_by_side_page([one, two])

    assert page.answer == (
        "b and a have no device in common: nothing can be paired. The best test accuracy of each: a: Ref (0.5000); "
        "b: Own (0.7000)."
    )


def test_the_settings_that_differ_have_a_column_for_each_folder() -> None:
    settings = {"seed": 1, "name": "one", "partition.personal": ["a", "b"], "pretrain.rounds": 2}
    first = source("a", {"Ref": {1: [0.5]}}, settings)
    second = source(
        "b", {"Own": {1: [0.7]}}, settings | {"name": "two", "pretrain.rounds": 3, "compare.seeds": 3}
    )

    section = side_by_side_page([first, second]).sections[0]

    assert section.title == "Settings that differ"
    assert section.table
    assert section.table.columns == ["key", "a", "b"]
    assert section.table.rows == [["pretrain.rounds", "2", "3"]]


@pytest.mark.slow
def test_only_a_table_of_devices_with_changes_is_said_to_have_them() -> None:
    few = side_by_side_page([source("a", {"Ref": {1: [0.5]}}), source("b", {"Own": {1: [0.7]}})])
    own = {f"Own {number}": {1: [0.7]} for number in range(6)}
    many = side_by_side_page([source("a", {"Ref": {1: [0.5]}}), source("b", own)])

    assert few.sections[-1].paragraphs == ["In the table of all devices, every change is relative to a: Ref."]
    assert many.listed
    assert many.sections[-1].paragraphs == []


def test_a_difference_of_rounding_has_no_sign() -> None:
    # 0.1 + 0.2 is not 0.3 for a computer: weighted means of the same metrics differ by 1e-17.
    page = side_by_side_page([
        source("a", {"Ref": {1: [0.3, 0.3, 0.3]}}),
        source("b", {"Own": {1: [0.1 + 0.2, 0.3, 0.3]}}),
    ])  # fmt: skip

    assert {gain for _, gain in columns(page, "model", "gain")} == {None, 0.0}
    assert page.sections[-1].table
    assert "| 0.0000 [0.0000, 0.0000] |" in str(page.sections[-1].table)
