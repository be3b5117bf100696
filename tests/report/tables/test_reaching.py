"""Rounds and megabytes to reach the reference's final metric, from evaluations written by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partita.data.arrow import write_table
from partita.report.tables.entries import Reached
from partita.report.tables.reaching import Reaching
from partita.runs.folder import RunFolder
from partita.studies.results import Results
from report.tables.test_comparison import outcome, results
from runs.test_curves import evaluation, training

Point = float | None
"""The metric after a round; None where it is not evaluated."""


def run(folder: Path, *rounds: Point, last: float, stage: str = "personalized") -> RunFolder:
    """A run that is evaluated on device a during training, on a and b at its end; a round is 110 bytes."""
    lines: list[dict[str, Any]] = []
    for number, metric in enumerate(rounds):
        lines.append(training(stage, number))
        if metric is not None:
            lines.append(evaluation(stage, number + 1, "a", metric=metric, weight=1))
    lines.append(evaluation(stage, len(rounds), "ab", final=True, metric=9.0, weight=2))
    folder.mkdir()
    (folder / "rounds.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps({"metric": "accuracy", "split": "test"}))
    rows = [
        {"stage": stage, "device": device, "split": "test", "weight": 1, "metric": metric}
        for device, metric in (("a", last), ("b", 9.0))
    ]
    kinds = {"stage": str, "device": str, "split": str, "weight": int, "metric": float}
    write_table(folder / "devices.parquet", rows, kinds)
    return RunFolder(folder)


@pytest.fixture
def compared(tmp_path: Path) -> Results:
    """Pretraining of 2 rounds; then 3 rounds each: the reference ends at 0.6 on device a."""
    runs = {
        ("", ""): {1: run(tmp_path / "start", 0.2, None, last=0.3, stage="pretrained")},
        ("fedavg", ""): {
            1: run(tmp_path / "fedavg", 0.7, 0.4, None, last=0.6),
            2: run(tmp_path / "fedavg2", 0.1, 0.1, None, last=0.9),
        },
        ("fedalt", "output"): {
            1: run(tmp_path / "fedalt", 0.5, 0.6, None, last=0.5),
            2: run(tmp_path / "fedalt2", 0.5, 0.6, None, last=0.8),
        },
        ("fedsim", "output"): {1: run(tmp_path / "fedsim", 0.5, 0.5, None, last=0.5)},
    }
    cost = {"": (2, 220), "fedavg": (3, 330)}
    outcomes = {
        variant: [
            outcome(
                0.5, 0.5, rounds=cost.get(variant[0], (3, 330))[0], sent=cost.get(variant[0], (3, 330))[1]
            )
        ]
        * len(own)
        for variant, own in runs.items()
    }
    return results(outcomes, runs=runs)


def test_the_first_evaluation_that_is_as_good_counts_with_the_training_before_it(compared: Results) -> None:
    reaching = Reaching(compared)

    # In seed 1 FedAlt has 0.6 after its second round, and the two of pretraining. In seed 2, where 0.9 is the
    # goal, it never has.
    assert reaching.rounds(("fedalt", "output")) == Reached(4.0, 1, 2)
    assert reaching.megabytes(("fedalt", "output")) == Reached(4 * 110 / 1e6, 1, 2)
    assert reaching.rounds(("fedsim", "output")) == Reached(None, 0, 1)
    assert reaching.rounds(("", "")) == Reached(None, 0, 1)


def test_the_reason_why_nothing_is_known_is_the_real_one(compared: Results, tmp_path: Path) -> None:
    reference = compared.reference
    unevaluated = {1: run(tmp_path / "unevaluated", None, None, last=0.6)}
    alone = {variant: own for variant, own in compared.outcomes.items() if variant[0] == "fedalt"}

    assert Reaching(compared).unknown == ""
    assert Reaching(replace(compared, runs={**compared.runs, reference: unevaluated})).unknown == (
        '"FedAvg, continued" was not evaluated during training (set `evaluate.every`)'
    )
    assert Reaching(replace(compared, outcomes=alone)).unknown == '"FedAvg, continued" has no result'


def test_the_reference_itself_may_have_been_as_good_before(compared: Results) -> None:
    # In seed 1 it had 0.7 after its first round; in seed 2, without a pretraining, only its end counts.
    assert Reaching(compared).rounds(("fedavg", "")) == Reached((3 + 3) / 2, 2, 2)
