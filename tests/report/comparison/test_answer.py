"""The first sentence of a comparison, the rows of its forest plot and its Pareto front, worked by hand."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import Table

from partita.report.comparison.answer import ComparisonAnswer
from partita.report.comparison.data import ComparisonData
from partita.report.comparison.standings import Standings, on_front
from partita.report.comparison.unseen import UnseenAnswer
from partita.studies.cells import START
from partita.studies.comparison import ComparedMethod, Comparison
from partita.studies.results import CellResult, Results

TITLES = {START: "FedAvg", "local": "Local only", "fedavg": "FedAvg, continued", "fedalt": "FedAlt"}
TITLES |= {"continued": "Finetune after continued FedAvg"}
# The mean of (0.1, 0.3, 0.1, 0.3) is 0.2, its standard error 0.1155 / 2, and t is 3.1824 for 3 degrees.
CLEAR = [0.6, 0.8, 0.6, 0.8]
UNCLEAR = [0.4, 0.8, 0.4, 0.8]
FLAT = [0.5, 0.5, 0.5, 0.5]
UNSEEN = {
    "fedavg": {"finetuned": {"u0": (0.6, 1), "u1": (0.8, 1)}},
    "fedalt": {"finetuned": {"u0": (0.5, 1), "u1": (0.5, 1)}},
}


def by_device(values: Any) -> dict[str, tuple[float, int]]:
    """The metrics of devices, all of weight 1; those of a list are called d0, d1, ..."""
    named = values if isinstance(values, dict) else {f"d{at}": value for at, value in enumerate(values)}
    return {device: (value, 1) for device, value in named.items()}


def standings(
    direction: Any = "up", rounds: int = 30, seeds: int = 1, changes: Any = None, **metrics: Any
) -> Standings:
    """The standings of methods by the metrics of devices: the same with each seed, or given by seed."""
    by_seed = {
        method: own if isinstance(own, dict) else dict.fromkeys(range(seeds), own)
        for method, own in metrics.items()
    }
    outcomes = {
        (START if method == "start" else method, ""): {
            seed: CellResult(
                stages={"finetuned": by_device(values)},
                rounds=rounds if method == "fedalt" else 30,
                sent=2_000_000,
                seconds=1.0,
                kept=7,
                unseen=UNSEEN.get(method, {}) if changes == "unseen" else {},
            )
            for seed, values in own.items()
        }
        for method, own in by_seed.items()
    }
    methods = {
        method: ComparedMethod(
            title=title, citation=None, begins_pretrained=False, trains_alone=method == "local"
        )
        for method, title in TITLES.items()
    }
    run: Any = SimpleNamespace(values={"partition": {"personal": "output"}})
    results = Results(
        metric="accuracy",
        direction=direction,
        split="test",
        seeds=seeds,
        outcomes=outcomes,
        titles=TITLES,
        citations={},
        baseline="finetune",
        notes=[],
        begin_pretrained=frozenset(),
        alone="local",
        runs={variant: {0: run} for variant in outcomes},
    )
    return Standings(ComparisonData(Comparison(Path(), {}, [], methods), results))


def test_the_best_model_is_compared_with_the_reference_after_as_many_rounds() -> None:
    answer = ComparisonAnswer(standings(start=FLAT, fedavg=FLAT, fedalt=CLEAR))

    assert answer.sentence() == (
        "FedAlt has the best test accuracy of 3 models, 0.7000: 0.2000 better than FedAvg, continued, after the "
        "same 30 rounds (95 % interval +0.0163 to +0.3837, paired over 4 devices and 1 seed)."
    )
    assert list(answer.details()) == [
        "Compared with FedAvg, continued, 4 of 4 devices are better off and 0 worse off.",
    ]


def test_an_interval_that_holds_zero_is_no_clear_difference() -> None:
    found = standings(rounds=20, seeds=2, fedavg=FLAT, fedalt=UNCLEAR)

    # Four times (-0.1, 0.3): the mean is 0.1 and its standard error 0.2309 / 2.
    assert ComparisonAnswer(found).sentence() == (
        "FedAlt has the best test accuracy of 2 models, 0.6000: no clear difference from FedAvg, continued, which "
        "trained for 30 rounds instead of 20 (+0.1000, 95 % interval -0.2675 to +0.4675, paired over 4 devices "
        "and 2 seeds)."
    )


def test_models_that_do_not_clearly_differ_from_the_best_are_named() -> None:
    found = standings(start=[0.69, 0.81, 0.56, 0.7], fedavg=FLAT, fedalt=CLEAR, local=[0.1, 0.3, 0.1, 0.3])

    # The start is 0.09 and 0.01 above FedAlt and 0.04 and 0.1 below it; training alone 0.5 below it on all.
    assert list(ComparisonAnswer(found).details())[1:] == [
        "FedAvg, with as many rounds and a final fine-tuning too, has 0.6900: no clear difference (+0.0100, 95 % "
        "interval -0.1180 to +0.1380, paired over 4 devices and 1 seed).",
    ]


def test_a_lower_error_is_better() -> None:
    answer = ComparisonAnswer(standings("down", fedavg=CLEAR, fedalt=FLAT))

    assert answer.sentence().startswith(
        "FedAlt has the best (lowest) test accuracy of 2 models, 0.5000: 0.2000 better than FedAvg, continued,"
    )


def test_it_is_said_plainly_if_the_reference_is_best() -> None:
    answer = ComparisonAnswer(standings(fedavg=CLEAR, fedalt=FLAT, local=[0.1, 0.2, 0.3, 0.4]))

    assert answer.sentence() == (
        "FedAvg, continued has the best test accuracy of 3 models, 0.7000: no other model is better."
    )
    assert next(answer.details()) == (
        "Next is FedAlt, 0.5000: 0.2000 worse than FedAvg, continued (95 % interval -0.3837 to -0.0163, paired "
        "over 4 devices and 1 seed)."
    )


def test_it_is_said_plainly_if_training_alone_is_best() -> None:
    answer = ComparisonAnswer(standings(fedavg=FLAT, fedalt=UNCLEAR, local=CLEAR))

    assert answer.sentence().startswith(
        "Training alone (Local only) has the best test accuracy of 3 models, 0.7000: 0.2000 better than FedAvg, "
        "continued (95 % interval +0.0163 to +0.3837,"
    )
    # (0.2, 0, 0.2, 0) from FedAlt: 0.1 with a standard error of 0.1155 / 2.
    assert list(answer.details())[1:] == [
        "FedAlt, the best model with federation, has 0.6000: no clear difference (+0.1000, 95 % interval "
        "-0.0837 to +0.2837, paired over 4 devices and 1 seed).",
    ]


def test_without_the_reference_the_best_model_is_compared_with_pretraining() -> None:
    found = standings(start=FLAT, fedalt=CLEAR)

    assert "0.2000 better than FedAvg, after the same 30 rounds" in ComparisonAnswer(found).sentence()
    assert ComparisonAnswer(standings(fedalt=CLEAR)).sentence() == (
        "FedAlt has the best test accuracy of 1 model, 0.7000, over 1 seed."
    )


@pytest.mark.parametrize(("direction", "low", "high"), [("up", 0.5163, 0.8837), ("down", 0.1163, 0.4837)])
def test_a_bar_is_the_difference_around_the_reference(direction: str, low: float, high: float) -> None:
    better = CLEAR if direction == "up" else [0.4, 0.2, 0.4, 0.2]

    first, second = standings(direction, fedavg=FLAT, fedalt=better).points

    assert (first["model"], first["verdict"]) == ("FedAlt", "clearly better")
    assert (first["low"], first["high"]) == pytest.approx((low, high), abs=5e-5)
    assert first["point"] == pytest.approx(first["mean"])
    assert first["gain"] == pytest.approx(0.2)
    assert (second["verdict"], second["low"]) == ("reference", None)


def test_a_model_without_some_devices_is_compared_on_the_others() -> None:
    found = standings(fedavg=[0.5, 0.5, 0.1, 0.1], fedalt=[0.4, 0.4])

    # FedAlt has the higher mean, 0.4 instead of 0.3, only because it lacks the two hard devices.
    assert [one.title for one in found.ranked] == ["FedAvg, continued", "FedAlt"]
    row = next(point for point in found.points if point["model"] == "FedAlt")
    # 0.1 below the reference on the two devices that both have, drawn 0.1 below its mean of 0.3.
    assert (row["mean"], row["point"], row["gain"]) == pytest.approx((0.4, 0.2, -0.1))
    assert next(ComparisonAnswer(found).details()) == (
        "No metric on some devices, so compared on the others: FedAlt (lacks 2 devices)."
    )


def test_a_device_that_failed_does_not_hide_a_better_model() -> None:
    answer = ComparisonAnswer(standings(fedavg=[*FLAT, 0.5], fedalt=CLEAR))

    assert answer.sentence().startswith(
        "FedAlt has the best test accuracy of 2 models, 0.7000: 0.2000 better than FedAvg, continued,"
    )


def test_a_model_without_a_seed_is_not_the_best_and_a_better_mean_of_it_is_named() -> None:
    both = {0: FLAT, 1: FLAT}
    answer = ComparisonAnswer(standings(seeds=2, fedavg=both, local=both, fedalt={0: CLEAR}))

    assert answer.sentence() == (
        "FedAvg, continued has the best test accuracy of 2 models, 0.5000: no other of these is better."
    )
    assert list(answer.details())[:2] == [
        "Not ranked, because seeds are missing: FedAlt (has 1 of 2).",
        "FedAlt is better on the seeds that it has, 0.7000.",
    ]


def test_a_seed_that_few_models_have_excludes_no_model() -> None:
    found = standings(seeds=2, start=FLAT, fedavg={0: FLAT}, fedalt={0: CLEAR})

    assert ComparisonAnswer(found).sentence().startswith("FedAlt has the best test accuracy of 3 models, 0.7")


def test_devices_are_counted_by_seed_where_each_seed_draws_others() -> None:
    def drawn(metrics: list[float]) -> dict[int, dict[str, float]]:
        return {seed: {f"{seed}-{at}": metric for at, metric in enumerate(metrics)} for seed in range(3)}

    answer = ComparisonAnswer(standings(fedavg=drawn(FLAT), fedalt=drawn(CLEAR)))

    assert next(answer.details()) == (
        "Compared with FedAvg, continued, 4 of 4 devices are better off and 0 worse off, averaged over seeds."
    )


def test_the_rival_that_continues_the_reference_is_named_with_what_it_has_had_too() -> None:
    found = standings(
        fedavg=FLAT, fedalt=CLEAR, continued=[0.55, 0.75, 0.55, 0.75], local=[0.7, 0.7, 0.6, 0.7]
    )
    results = replace(found.data.results, begin_continued=frozenset({("continued", "")}))
    answer = ComparisonAnswer(Standings(replace(found.data, results=results)))

    # The reference has no fine-tuning, so the rounds of the rival are those of the reference and its own.
    assert list(answer.details())[1:] == [
        "Finetune after continued FedAvg, with 60 rounds and a final fine-tuning too, has 0.6500: FedAlt is "
        "0.0500 better (95 % interval +0.0500 to +0.0500, paired over 4 devices and 1 seed).",
        "Not clearly different from FedAlt: Local only.",
    ]


def test_the_best_on_unseen_devices_is_named_beside_the_best_on_seen_ones() -> None:
    found = standings(changes="unseen", fedavg=FLAT, fedalt=CLEAR)
    rows = [{"device": device, "split": "test", "examples": 10} for device in ("u0", "u1")]
    run: Any = SimpleNamespace(values={"partition": {"personal": "output"}}, unseen=Table.from_pylist(rows))
    run.reopened = lambda: run
    results = replace(found.data.results, runs={("fedalt", ""): {0: run}})
    answer = ComparisonAnswer(Standings(replace(found.data, results=results)))

    # FedAvg, continued is 0.1 and 0.3 better on the two: t is 12.7 for 1 degree of freedom.
    assert list(answer.details())[-1] == (
        "On the 2 unseen devices (20 test examples) FedAlt has 0.5000. FedAvg, continued is the best there, "
        "0.7000: no clear difference (+0.2000, 95 % interval -1.0706 to +1.4706, paired over 2 devices and 1 "
        "seed)."
    )
    assert UnseenAnswer(answer.standings).finding() == (
        "The best on 2 unseen devices is FedAvg, continued, 0.7000: no clear difference from the next, FedAlt"
    )


def test_the_front_has_the_models_that_no_other_beats_at_the_same_or_a_lower_cost() -> None:
    costs = [0, 1, 1, 2, 3, 3]
    metrics = [0.5, 0.7, 0.6, 0.7, 0.9, 0.9]

    # 0.6 costs as much as 0.7; 0.7 at 2 costs more than at 1; both of the tied best are on the front.
    assert on_front(costs, metrics, "up") == [True, True, False, False, True, True]
    assert on_front(costs, [-metric for metric in metrics], "down") == on_front(costs, metrics, "up")
    assert on_front(costs, metrics, "down") == [True, False, False, False, False, False]
