"""The tables of a comparison, from outcomes written by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import stdev
from typing import Any

import pytest

from partita.methods import registry
from partita.report.tables.comparison import comparison_tables
from partita.report.tables.entries import Cited, Interval, MeanStd, Rounded, Share
from partita.report.tables.table import Table
from partita.studies.columns import COLUMNS
from partita.studies.results import CellResult, Results, Variant

TITLES = {"": "FedAvg", "local": "Local only", "fedavg": "FedAvg, continued", "finetune": "Finetune"}
TITLES |= {
    "ft_part": "FT (part.)",
    "fedalt": "FedAlt",
    "fedsim": "FedSim",
    "fedalt-stateless": "FedAlt, stateless",
}


def outcome(
    *last: float, weights: Sequence[int] = (1, 3), before: Sequence[float] = (), **changes: Any
) -> CellResult:
    """The outcome of a run on the devices d0, d1, ...; with `before`, of the stage before the last too."""

    def values(metrics: Sequence[float]) -> dict[str, tuple[float, int]]:
        return {f"d{n}": (m, w) for n, (m, w) in enumerate(zip(metrics, weights, strict=False))}

    stages = (
        {"personalized": values(before), "finetuned": values(last)} if before else {"finetuned": values(last)}
    )
    whole = CellResult(stages=stages, rounds=10, sent=2_000_000, seconds=3.0, kept=7)
    return replace(whole, **changes)


def results(outcomes: Mapping[Variant, Sequence[CellResult]], **changes: Any) -> Results:
    whole = Results(
        metric="accuracy",
        direction="up",
        split="test",
        seeds=2,
        outcomes={row: dict(enumerate(runs, start=1)) for row, runs in outcomes.items()},
        titles=TITLES,
        citations=dict.fromkeys(TITLES, registry.find("fedalt").citation),
        baseline="finetune",
        alone="local",
        notes=[],
        begin_pretrained=frozenset(row for row in outcomes if row[0] not in ("", "local")),
    )
    return replace(whole, **changes)


START = outcome(0.25, 0.25), outcome(0.25, 0.5)
FINETUNE = outcome(0.5, 0.5), outcome(0.5, 0.75)
ALT = outcome(0.5, 0.75), outcome(0.75, 0.75)
SMALL = {("", ""): START, ("finetune", ""): FINETUNE, ("fedalt", "output"): ALT}


def table(name: str, given: Results) -> Table:
    (found,) = [one for one in comparison_tables(given) if one.name == name]
    return found


def column(name: str, given: Results) -> list[Any]:
    """A column of the table `methods` by its name, also if it is not shown."""
    return [row[2 + list(COLUMNS).index(name)] for row in table("methods", given).rows]


def test_a_row_is_the_mean_over_devices_by_weight_then_over_seeds_with_the_spread_of_seeds() -> None:
    # FedAlt: (0.5 + 3 * 0.75) / 4 = 0.6875 and 0.75.
    mean_std = column("metric", results(SMALL))[2]

    assert mean_std.mean == pytest.approx((0.6875 + 0.75) / 2)
    assert mean_std.std == pytest.approx(stdev([0.6875, 0.75]))


def test_the_best_and_all_that_do_not_clearly_differ_from_it_are_marked() -> None:
    # On four devices of the same weight, below the best by 0.1 on average: by (0, 0.2, 0, 0.2), whose interval
    # is 0.1 +- 3.18 * 0.1155 / 2 and holds zero, or by 0.1 on all of them.
    best, unclear, worse = (0.8, 0.9, 0.8, 0.9), (0.8, 0.7, 0.8, 0.7), (0.7, 0.8, 0.7, 0.8)
    outcomes = {
        row: [outcome(*metrics, weights=(1, 1, 1, 1))]
        for row, metrics in {("local", ""): best, ("", ""): unclear, ("finetune", ""): worse}.items()
    }

    found = column("metric", results(outcomes))

    assert [entry.mean for entry in found] == pytest.approx([0.85, 0.75, 0.75])
    assert [entry.is_best for entry in found] == [True, True, False]


def test_where_lower_is_better_the_lowest_is_marked_and_gains_turn_around() -> None:
    given = results(SMALL, direction="down")

    assert [mean_std.is_best for mean_std in column("metric", given)] == [True, False, False]
    assert "(lower is better)" in table("methods", given).title
    # Of FedAlt against Finetune: 0 and 0.25 times 3, 0.25 and 0 times 3; over 8.
    assert column("difference", given)[2].value == pytest.approx(-(0.75 + 0.25) / 8)
    assert column("difference", results(SMALL))[2].value == pytest.approx((0.75 + 0.25) / 8)


def test_one_seed_has_no_deviation() -> None:
    given = results({row: runs[:1] for row, runs in SMALL.items()}, seeds=1)

    assert [(entry.mean, entry.std) for entry in column("metric", given)] == [
        *((0.25, None), (0.5, None), (0.6875, None)),
    ]
    assert "over 1 seed." in table("methods", given).notes[0]


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        (1, "An interval over 1 seed covers other devices from the same distribution, not other seeds"),
        (2, "An interval over 2 seeds covers other devices and other seeds, but 2 seeds tell little"),
        (3, "An interval over 3 or more seeds covers other devices and other seeds"),
        (5, "An interval over 3 or more seeds covers other devices and other seeds"),
    ],
)
def test_every_table_with_intervals_says_what_they_cover(seeds: int, words: str) -> None:
    runs = [outcome(0.75, 0.75, before=(0.5, 0.25))] * seeds
    outcomes = {("finetune", ""): runs, ("fedalt", "output"): runs, ("fedalt-stateless", "output"): runs}

    for name in ("methods", "finetuning", "stateless"):
        notes = table(name, results(outcomes, seeds=seeds)).notes
        assert "95 % confidence interval" in notes[0]
        (note,) = notes[1:]
        assert note.startswith(words)


def test_an_interval_over_fewer_seeds_than_the_others_has_its_own_note() -> None:
    runs = [outcome(0.5, 0.75)] * 3
    outcomes = {("finetune", ""): runs, ("fedalt", "output"): runs, ("fedsim", "output"): runs[:1]}

    notes = table("methods", results(outcomes, seeds=3)).notes

    assert [note[:24] for note in notes[2:]] == ["An interval over 1 seed ", "An interval over 3 or mo"]


def test_the_baseline_is_not_paired_with_itself() -> None:
    better = column("difference", results(SMALL))

    assert [isinstance(entry, Interval) for entry in better] == [True, False, True]
    assert table("methods", results(SMALL)).shown[3] == "difference from Finetune"


def test_a_baseline_with_partitions_is_paired_with_the_same_one_where_it_has_it() -> None:
    one, two, three = ([outcome(x, x)] for x in (0.25, 0.5, 0.75))
    outcomes = {
        ("fedalt", "input"): one,
        ("fedalt", "output"): two,
        ("fedsim", "output"): three,
        ("local", ""): three,
    }

    better = column("difference", results(outcomes, baseline="fedalt"))

    assert [entry and entry.value for entry in better] == [None, None, 0.25, 0.5]


def test_the_part_of_the_baseline_that_others_are_paired_with_is_named() -> None:
    outcomes = {
        ("", ""): START,
        ("fedalt", "input"): ALT,
        ("fedalt", "output"): ALT,
        ("fedsim", "output"): ALT,
    }
    note = (
        "The difference from FedAlt is with the same personal part; for a model whose part FedAlt does not "
        "have, with input."
    )

    assert note in table("methods", results(outcomes, baseline="fedalt")).notes
    del outcomes["", ""]  # Then all models have one of the baseline's parts.
    assert note not in table("methods", results(outcomes, baseline="fedalt")).notes


def test_a_baseline_that_failed_leaves_the_column_empty() -> None:
    assert column("difference", results(SMALL, baseline="local")) == [None, None, None]


def test_seeds_that_only_one_of_two_methods_has_are_not_paired() -> None:
    given = results({**SMALL, ("finetune", ""): FINETUNE[:1]})

    # Seed 1 alone: 0 and 0.25 times 3, over 4.
    assert column("difference", given)[2].value == pytest.approx(0.1875)


def test_costs_include_pretraining_for_those_that_begin_from_it() -> None:
    given = results({**SMALL, ("local", ""): [outcome(0.5, 0.5, rounds=0)] * 2})

    assert column("rounds", given) == [10, 20, 20, 0]
    assert column("mb", given) == [Rounded(2.0), Rounded(4.0), Rounded(4.0), Rounded(2.0)]
    assert column("seconds", given) == [Rounded(3.0), Rounded(6.0), Rounded(6.0), Rounded(3.0)]


def test_the_table_says_which_rows_judge_and_what_failed() -> None:
    methods = table(
        "methods", results(SMALL, split="validation", notes=["fedsim-output-1 failed: Diverged."])
    )

    assert methods.title.startswith("Validation accuracy after the last stage")
    assert methods.notes[-1:] == ["fedsim-output-1 failed: Diverged."]
    assert methods.rows[0][0] == Cited("FedAvg", "pillutla2022")


def test_partial_personalization_is_a_row_a_partition_with_its_own_best() -> None:
    outcomes = {
        ("ft_part", "input"): [outcome(0.5, 0.5)],
        ("fedalt", "input"): [outcome(0.25, 0.25)],
        ("ft_part", "output"): [outcome(0.75, 0.75)],
        ("fedalt", "output"): [outcome(1.0, 1.0)],
        ("fedsim", "output"): [outcome(0.5, 0.5)],
    }

    partial = table("partial", results(outcomes))

    assert partial.columns == ["personal part", "FT (part.)", "FedAlt", "FedSim"]
    assert partial.rows == [
        ["input", MeanStd(0.5, is_best=True), MeanStd(0.25), None],
        ["output", MeanStd(0.75), MeanStd(1.0, is_best=True), MeanStd(0.5)],
    ]


def test_finetuning_is_before_against_after() -> None:
    outcomes = {
        ("fedalt", "output"): [outcome(0.75, 0.75, before=(0.5, 0.5))],
        ("finetune", ""): FINETUNE[:1],
    }

    (row,) = table("finetuning", results(outcomes)).rows

    assert row == ["FedAlt", "output", MeanStd(0.5), MeanStd(0.75), Interval(0.25, 0.25, 0.25)]


def test_stateless_is_against_the_same_method_with_a_state() -> None:
    outcomes = {
        ("fedalt", "output"): [outcome(0.75, 0.75)],
        ("fedalt", "input"): [outcome(0.75, 0.75)],
        ("fedalt-stateless", "output"): [outcome(0.5, 0.5)],
    }

    (row,) = table("stateless", results(outcomes)).rows

    assert row == ["FedAlt", "output", MeanStd(0.75), MeanStd(0.5), Interval(-0.25, -0.25, -0.25)]


def test_tables_with_nothing_to_say_are_left_out() -> None:
    assert [one.name for one in comparison_tables(results(SMALL))] == ["methods", "devices", "training"]


def counts_in(devices: Table) -> dict[Any, list[Any]]:
    """The numbers of devices helped, hurt and unchanged, by method."""
    numbers: list[list[Any]] = [list(row) for row in devices.rows]
    return {row[0].text: [entry.value for entry in row[3:6]] for row in numbers}


def test_helped_and_hurt_are_means_over_seeds_against_the_same_seeds_reference() -> None:
    # FedAlt against the start: both helped under seed 1, both under seed 2; Finetune too.
    mixed = {**SMALL, ("local", ""): [outcome(0.0, 1.0), outcome(0.25, 1.0)]}

    devices = table("devices", results(mixed))

    counts = counts_in(devices)
    assert counts["FedAvg"] == [0, 0, 2]
    assert counts["FedAlt"] == [2, 0, 0]
    assert counts["Local only"] == [1, 0.5, 0.5]
    assert "as under FedAvg with the same seed" in devices.notes[0]
    assert devices.columns[3:6] == ["better than FedAvg", "worse than FedAvg", "same as FedAvg"]


def test_helped_and_hurt_are_against_the_round_matched_reference_where_it_has_a_result() -> None:
    given = results({**SMALL, ("fedavg", ""): ALT})

    devices = table("devices", given)

    counts = counts_in(devices)
    assert counts["FedAlt"] == counts["FedAvg, continued"] == [0, 0, 2]
    assert counts["Finetune"] == [0, 1, 1]
    assert "as under FedAvg, continued with the same seed" in devices.notes[0]


def test_a_reference_that_failed_leaves_the_counts_empty() -> None:
    (row,) = table("devices", results({("local", ""): FINETUNE})).rows

    assert row[2:6] == [None, None, None, None]


def test_the_worst_tenth_is_the_bad_end_where_lower_is_better_too() -> None:
    # Over two devices at 0 and 1, nine of ten reach 0.1 going up and 0.9 going down.
    outcomes = {("", ""): [outcome(0.0, 1.0)]}

    assert column("percentile", results(outcomes)) == pytest.approx([0.1])
    assert column("percentile", results(outcomes, direction="down")) == pytest.approx([0.9])


def test_what_devices_serve_has_a_row_of_its_own_and_is_not_the_last_stage() -> None:
    chosen = outcome(0.5, 0.25)
    chosen = replace(chosen, stages={**chosen.stages, "served": {"d0": (0.5, 1), "d1": (0.75, 3)}})
    outcomes = {("", ""): START[:1], ("fedalt", "output"): [replace(chosen, stages={**chosen.stages})]}

    rows: list[list[Any]] = [list(row) for row in table("devices", results(outcomes)).rows]

    assert [row[0].text for row in rows] == ["FedAvg", "FedAlt", "FedAlt, chosen on validation"]
    means = [mean_std.mean for mean_std in column("metric", results(outcomes))]
    assert means == pytest.approx([0.25, (0.5 + 3 * 0.25) / 4, (0.5 + 3 * 0.75) / 4])
    assert chosen.last == chosen.stages["finetuned"]


def test_a_model_without_some_devices_is_marked_by_those_it_has_and_named() -> None:
    # FedAlt has one of two devices in the second seed, and is 0.4, 0.4 and 0.4 better than Finetune.
    alt = outcome(0.9, 0.9), outcome(0.9)
    given = results({**SMALL, ("fedalt", "output"): alt})

    assert [mean_std.is_best for mean_std in column("metric", given)] == [False, False, True]
    assert table("methods", given).notes[1] == (
        "No metric on some devices, so compared on the others: FedAlt (output) (lacks 1 device)."
    )


def test_a_high_mean_on_easy_devices_is_not_the_best() -> None:
    # FedAlt has the higher mean, 0.8, only because it lacks d1; on d0 Finetune is 0.1 better.
    outcomes = {("fedavg", ""): [outcome(0.7, 0.1)], ("finetune", ""): [outcome(0.9, 0.2)]}
    given = results({**outcomes, ("fedalt", "output"): [outcome(0.8)]})

    # One device in common is no interval: the difference counts as it is.
    assert [mean_std.is_best for mean_std in column("metric", given)][2] is False


def test_a_model_without_a_seed_is_not_marked_and_the_seeds_are_counted() -> None:
    given = results({**SMALL, ("fedalt", "output"): [outcome(0.9, 0.9)]})

    assert column("metric", given)[2].is_best is False
    notes = table("methods", given).notes
    assert "averaged over 1 to 2 seeds" in notes[0]
    assert notes[1] == "Not ranked, because seeds are missing: FedAlt (output) (has 1 of 2)."


def test_every_table_names_what_failed() -> None:
    failure = "fedsim-output-1 failed: Diverged."
    given = results(SMALL, notes=[failure], failures=[failure])

    assert all(one.notes[-1] == failure for one in comparison_tables(given))
    assert table("methods", given).notes.count(failure) == 1


def shown(given: Results, *columns: str) -> Table:
    return table("methods", replace(given, columns=columns))


def test_the_chosen_columns_are_shown_in_their_order_and_explained() -> None:
    chosen = shown(results(SMALL), "percentile", "metric", "memory")

    assert chosen.shown == [
        *("method", "personal part", "10th percentile of accuracy", "accuracy", "kB of memory in a visit"),
    ]
    assert len(chosen.columns) == 2 + len(COLUMNS)
    assert "9 of 10 devices reach it" in chosen.notes[0]
    assert "Difference" not in chosen.notes[0]
    assert not any(note.startswith("An interval over") for note in chosen.notes)


def test_worth_joining_is_better_than_alone_and_than_the_round_matched_reference() -> None:
    # d0 beats both in both seeds; d1 beats both in seed 2 only. The pretrained model beats neither.
    outcomes = {
        ("", ""): [outcome(0.1, 0.1)] * 2,
        ("local", ""): [outcome(0.4, 0.6)] * 2,
        ("fedavg", ""): [outcome(0.3, 0.7)] * 2,
        ("fedalt", "output"): [outcome(0.5, 0.65), outcome(0.5, 0.8)],
        ("fedsim", "output"): [outcome(0.5), outcome(0.5, 0.8)],
    }

    entries = column("worth_joining", results(outcomes))

    # FedSim has one device in seed 1: 1 of 1 and 2 of 2.
    assert entries == [Share(0, 2), None, None, Share(1.5, 2), Share(1.5, 1.5)]
    note = table("devices", results(outcomes)).notes[0]
    assert "both Local only (training alone) and FedAvg, continued (the global model" in note


def test_without_the_round_matched_reference_pretraining_takes_its_place() -> None:
    given = results({**SMALL, ("local", ""): START})

    # Both devices of both methods are better off than under the start, whose metrics training alone has too.
    assert column("worth_joining", given) == [None, Share(2, 2), Share(2, 2), None]
    assert given.reference == ("", "")
    assert results({**SMALL, ("fedavg", ""): ALT}).reference == ("fedavg", "")


def test_an_untrained_start_is_no_reference() -> None:
    untrained = replace(START[0], rounds=0)

    assert results({("", ""): [untrained], ("local", ""): START}).reference == ("fedavg", "")


def test_a_quartile_is_the_weighted_mean_over_its_devices_then_over_seeds() -> None:
    weights, examples = (3, 1, 1, 2, 1), {"d0": 10, "d1": 20, "d2": 40, "d3": 30, "d4": 50}
    first = outcome(0.1, 0.2, 0.3, 0.4, 0.5, weights=weights, examples=examples)
    # In seed 2 the devices have other sizes, and d4, the only one of its quarter, has no metric.
    second = outcome(0.6, 0.4, 0.2, 0.8, weights=weights, examples=examples | {"d0": 45})
    outcomes = {("", ""): [first], ("fedalt", "output"): [first, second]}

    quartiles = [column(f"quartile{n}", results(outcomes)) for n in (1, 2, 3, 4)]

    # By size: d0, d1, d3, d2, d4, with the ranks 1/10, 3/10, 5/10, 7/10 and 9/10.
    start, alt = zip(*quartiles, strict=True)
    first_means = [0.1, 0.2, (0.3 + 2 * 0.4) / 3, 0.5]
    assert start == pytest.approx(first_means)
    # In seed 2: d1, d3, d2, d0, d4.
    second_means = [0.4, 0.8, (0.2 + 3 * 0.6) / 4]
    means = [(one + two) / 2 for one, two in zip(first_means, second_means, strict=False)]
    assert alt == pytest.approx([*means, 0.5])


def test_a_quarter_without_any_device_is_not_shown() -> None:
    # d0 has the rank 1/10, d1 3/10; the others have the mean of 5/10, 7/10 and 9/10.
    examples = {"d0": 1, "d1": 2, "d2": 3, "d3": 3, "d4": 3}
    run = outcome(0.0, 0.2, 0.3, 0.4, 0.5, weights=(1, 1, 1, 1, 1), examples=examples)

    devices = table("devices", results({("", ""): [run]}))

    # 7/10 is in the third quarter; the mean 0.0 of d0 is one.
    assert list(devices.shown)[-3:] == ["Q1 (fewest examples)", "Q2", "Q3"]
    assert "| Q3 |\n" in str(devices)
    assert devices.records[0]["Q4 (most examples)"] == ""
    assert "quarters may differ in size" in devices.notes[0]


def test_few_devices_have_no_quartiles() -> None:
    assert column("quartile1", results(SMALL)) == [None, None, None]


def test_it_says_why_the_rounds_to_reach_the_reference_are_not_known() -> None:
    given = results({**SMALL, ("fedavg", ""): ALT})

    assert column("rounds_to_reach", given) == [None] * 4
    assert any("set `evaluate.every`" in note for note in table("training", given).notes)
    assert not any("evaluate.every" in note for note in table("methods", given).notes)
    assert any("evaluate.every" in note for note in shown(given, "mb_to_reach").notes)
