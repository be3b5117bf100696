"""Early stopping: the decision by hand, and that a stopped stage is one that was planned to end there."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partita import (
    CannotDo,
    Evaluation,
    FedAlt,
    FedAvg,
    Finetuning,
    Partition,
    Plan,
    Task,
    Training,
    pipeline,
)
from partita.device.store import MemoryStore
from partita.device.visit import Visitor
from partita.errors import ConfigError
from partita.partition import personalization_of
from partita.protocol import Order, Stage
from partita.runs.folder import RunFolder
from partita.runs.warnings import warnings_of
from partita.server.optimizers import Adam
from partita.studies.local import local_executor
from partita.training.plan import Turn
from partita.training.stopping import Decision, Stopping
from small import affine_devices, affine_task, built, passing_devices, passing_task, same_bits

PLAN = Plan(
    pretrain=Training(
        method=FedAvg(shared_lr=0.1, batch_size=4),
        rounds=8,
        devices_per_round=3,
        patience=2,
        server=Adam(lr=0.2),
    ),
    personalize=Training(
        method=FedAlt(shared_lr=0.05, personal_lr=0.02, batch_size=4),
        rounds=12,
        devices_per_round=2,
        patience=3,
    ),
    finetune=Finetuning(personal_lr=0.1, epochs=1, batch_size=4),
)


def offset(task: Task) -> Partition:
    return Partition(task.model(), personal="offset")


def ended_at(plan: Plan, outcome: dict[str, Any]) -> Plan:
    """The same plan without early stopping, whose stages end at their best rounds."""
    best = {stage: own["best_round"] for stage, own in outcome.items()}
    return replace(
        plan,
        pretrain=replace(plan.pretrain, rounds=best.get("pretrained", 0), patience=0),
        personalize=replace(plan.personalize, rounds=best["personalized"], patience=0),
    )


def files(folder: Path) -> dict[str, bytes]:
    """The parts of the model and the measurements of a run."""
    found = [*folder.glob("shared/*"), *folder.glob("personal/*"), folder / "devices.parquet"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize(
    ("direction", "metrics", "best", "stops_after"),
    [
        # Better, equal (not better), worse: from the best round 2, two rounds pass at 4.
        ("up", [0.5, 0.7, 0.7, 0.6, 0.9], 2, 4),
        ("down", [0.5, 0.3, 0.3, 0.4, 0.1], 2, 4),
        # The best moves on just in time, twice.
        ("up", [0.1, 0.0, 0.2, 0.1, 0.3], 5, None),
        # A measurement without a metric is not better, and none is a best round.
        ("up", [None, 0.4, None, None, 0.9], 2, 4),
        ("up", [None, None, None, None, None], None, None),
    ],
)
def test_training_stops_after_as_many_rounds_without_a_better_metric(
    direction: Any, metrics: Sequence[float | None], best: int | None, stops_after: int | None
) -> None:
    decision, stopped = Decision(patience=2, direction=direction), None

    for round, metric in enumerate(metrics, start=1):
        decision = decision.after(round, None if metric is None else (metric, 10))
        if decision.stops:
            stopped = round
            break

    assert (decision.best, stopped) == (best, stops_after)


def test_measurements_of_fewer_devices_are_not_better_and_those_of_more_are() -> None:
    # Weight 10, then 7 with a higher metric, then 12 with a lower one, then 12 with a higher one.
    decision, found = Decision(patience=9, direction="up"), []

    for round, mean in enumerate([(0.5, 10), (0.9, 7), (0.3, 12), (0.4, 12)], start=1):
        decision = decision.after(round, mean)
        found.append(decision.best)

    assert found == [1, 1, 3, 4]


def test_the_blocks_of_an_evaluation_are_one_measurement_weighted_by_examples() -> None:
    # Round 1: (1 * 0.2 + 3 * 0.6) / 4 = 0.5. Round 2: 0.4 over 4. With patience 1 it stops there.
    turns = [
        Turn(Stage.PRETRAINED, work, round, number=number)
        for number, (work, round) in enumerate(
            [("update", 0), ("evaluate", 1), ("evaluate", 1), ("update", 1), ("evaluate", 2), ("update", 2)]
        )
    ]
    measured = {1: (0.2, 1), 2: (0.6, 3), 4: (0.4, 4)}
    stopping = Stopping(1, "up", turns)

    for turn in turns[:5]:
        metric, weight = measured.get(turn.number, (0, 0))
        stopping.add(turn, {"validation_metric": metric, "validation_weight": weight} if weight else {})

    assert stopping.decision.mean == (pytest.approx(0.5), 4)
    assert [turn.number for turn in turns if stopping.skips(turn)] == [5]
    assert stopping.record() == {
        "planned_rounds": 3,
        "rounds": 2,
        "best_round": 1,
        "stopped_early": True,
    }


@pytest.mark.parametrize(
    ("patience", "every", "rounds", "measured"),
    [
        (0, 0, 7, []),
        (0, 3, 6, [3]),
        (2, 0, 4, [1, 2, 3, 4]),
        (12, 0, 7, [2, 4, 6, 7]),
        (12, 3, 6, [3, 6]),
    ],
)
def test_the_metric_is_measured_at_intervals_and_in_the_last_round(
    patience: int, every: int, rounds: int, measured: list[int]
) -> None:
    training = replace(PLAN.personalize, rounds=rounds, patience=patience)

    turns = Plan(personalize=training, evaluate=Evaluation(every=every, sample=2)).turns(["a", "b", "c"])

    during = [turn for turn in turns if turn.work == "evaluate" and not turn.final]
    assert [(turn.round, len(turn.block)) for turn in during] == [(round, 2) for round in measured]


def test_a_stage_that_stops_is_one_that_was_planned_to_end_at_its_best_round(tmp_path: Path) -> None:
    task, seen = passing_task(), []

    stopped = pipeline(
        task, offset(task), PLAN, out=tmp_path / "stopped", watch=lambda *line: seen.append(line[1:])
    )
    outcome = stopped.summary["early_stopping"]
    pipeline(task, offset(task), ended_at(PLAN, outcome), out=tmp_path / "planned")

    assert {stage: own["stopped_early"] for stage, own in outcome.items()} == {
        "pretrained": True,
        "personalized": True,
    }
    assert outcome["personalized"]["rounds"] - outcome["personalized"]["best_round"] == 3
    assert files(tmp_path / "stopped") == files(tmp_path / "planned")
    lines = stopped.rounds
    assert [(done, lines[-1]["stage"]) for done, _ in seen] == [
        (n, "finetuned") for n in range(1, len(lines) + 1)
    ]
    assert seen[-1] == (len(lines), len(lines))
    (final,) = [line for line in lines if line["final"] and line["stage"] == "personalized"]
    assert final["round"] == outcome["personalized"]["best_round"]
    written = json.loads((tmp_path / "stopped/summary.json").read_text())
    assert written == stopped.summary


@pytest.mark.slow
def test_the_folder_and_the_memory_of_a_run_give_the_same(tmp_path: Path) -> None:
    task = passing_task()

    folder = pipeline(task, offset(task), PLAN, out=tmp_path / "run")
    memory = pipeline(task, offset(task), PLAN)

    assert folder.summary == memory.summary
    assert same_bits(folder.shared, memory.shared)
    assert all(same_bits(folder.personal(d), memory.personal(d)) for d in task.devices)


@pytest.mark.parametrize("method", ["fedalt", "fedalt-stateless", "scaffold"])
def test_everything_that_a_device_keeps_goes_back_with_it(method: str, tmp_path: Path) -> None:
    # SCAFFOLD keeps controls, stateless devices nothing.
    name, _, stateless = method.partition("-")
    own = built(
        name,
        "small:passing_task",
        pretrain={"rounds": 0},
        personalize={"rounds": 12, "patience": 3, "shared_lr": 0.05, "stateful": not stateless},
        finetune={"epochs": 0},
    )

    stopped = pipeline(own.task, own.personalization, own.plan, out=tmp_path / "stopped")
    outcome = stopped.summary["early_stopping"]
    planned = ended_at(own.plan, outcome)
    pipeline(own.task, own.personalization, planned, out=tmp_path / "planned")

    assert outcome["personalized"]["stopped_early"]
    assert 0 < outcome["personalized"]["best_round"] < outcome["personalized"]["rounds"]
    assert files(tmp_path / "stopped") == files(tmp_path / "planned")


@pytest.mark.slow
def test_patience_that_is_never_exhausted_goes_back_only_if_an_earlier_round_was_better(
    tmp_path: Path,
) -> None:
    task = passing_task()
    training = replace(PLAN.personalize, patience=100)
    often = Evaluation(every=1)
    short, long = (Plan(personalize=replace(training, rounds=rounds), evaluate=often) for rounds in (2, 24))

    patient = pipeline(task, offset(task), short, out=tmp_path / "patient")
    without = replace(short, personalize=replace(short.personalize, patience=0))
    pipeline(task, offset(task), without, out=tmp_path / "without")
    beyond = pipeline(task, offset(task), long)

    assert patient.summary["early_stopping"]["personalized"] == {
        "planned_rounds": 2,
        "rounds": 2,
        "best_round": 2,
        "stopped_early": False,
    }
    assert files(tmp_path / "patient") == files(tmp_path / "without")
    outcome = beyond.summary["early_stopping"]["personalized"]
    assert outcome["rounds"] == 24
    assert outcome["best_round"] < 24
    assert not outcome["stopped_early"]


def test_the_decision_never_looks_at_test_rows() -> None:
    shifted = passing_devices()
    for splits in shifted.values():
        inputs, targets = splits["test"]
        splits["test"] = inputs, targets - 7.0
    task, other = passing_task(), passing_task(devices=shifted)

    one, two = (pipeline(t, offset(t), PLAN) for t in (task, other))

    assert one.summary["early_stopping"] == two.summary["early_stopping"]
    assert same_bits(one.shared, two.shared)
    assert one.summary["stages"] != two.summary["stages"]
    during = [line for line in one.rounds if line["work"] == "evaluate" and not line["final"]]
    assert all(line["metric"] != line["validation_metric"] for line in during)


def test_failures_after_the_best_round_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Visitor._update

    def fail_late(self: Visitor, bench: Any, order: Order, *others: Any) -> Any:
        if order.device == "d2" and order.round >= 3:
            raise CannotDo("Asleep.")
        return update(self, bench, order, *others)

    monkeypatch.setattr(Visitor, "_update", fail_late)
    task = passing_task()
    training = replace(
        PLAN.personalize, method=FedAlt(shared_lr=0.1, personal_lr=0.05, batch_size=4), devices_per_round=6
    )

    result = pipeline(task, offset(task), Plan(personalize=training))

    outcome = result.summary["early_stopping"]["personalized"]
    assert any("d2" in line["failed"] for line in result.rounds)
    assert outcome["best_round"] <= 3 < outcome["rounds"]
    assert result.summary["stages"]["personalized"]["failed"] == 0


@pytest.mark.parametrize("device", ["d0", "d3"])
@pytest.mark.parametrize("fails_in", [range(8), range(3, 8), range(1, 4)])
def test_where_nothing_is_trained_a_device_that_fails_does_not_move_the_best_round(
    monkeypatch: pytest.MonkeyPatch, device: str, fails_in: range
) -> None:
    update = Visitor._update

    def fail(self: Visitor, bench: Any, order: Order, *others: Any) -> Any:
        if order.device == device and order.round in fails_in:
            raise CannotDo("Asleep.")
        return update(self, bench, order, *others)

    monkeypatch.setattr(Visitor, "_update", fail)
    task, still = passing_task(), FedAlt(shared_lr=0.0, personal_lr=0.0, batch_size=4)
    training = Training(method=still, rounds=8, devices_per_round=6, patience=4)

    result = pipeline(task, offset(task), Plan(personalize=training, evaluate=Evaluation(every=1)))

    assert any(device in line["failed"] for line in result.rounds)
    outcome = result.summary["early_stopping"]["personalized"]
    assert (outcome["best_round"], outcome["rounds"]) == (1, 5)


def test_patience_needs_validation_rows_before_a_run() -> None:
    devices = passing_devices()
    for splits in devices.values():
        del splits["validation"]
    task = passing_task(devices=devices)

    with pytest.raises(ValueError, match="`pretrain.patience` needs validation rows.*set `task.validation`"):
        pipeline(task, offset(task), PLAN)
    no_rounds = Plan(personalize=replace(PLAN.personalize, rounds=0))
    assert "early_stopping" not in pipeline(task, offset(task), no_rounds).summary


@pytest.mark.parametrize(
    ("device", "evaluate", "measured"),
    # By the hashes of their ids, d1 and d5 are unseen, and d0 and d1 are the sample of two.
    [("d1", Evaluation(unseen=0.3), 4), ("d3", Evaluation(sample=2), 2)],
)
def test_patience_needs_validation_rows_of_devices_that_are_measured(
    device: str, evaluate: Evaluation, measured: int
) -> None:
    devices = affine_devices()
    devices[device]["validation"] = devices[device]["test"]
    task = affine_task(devices=devices)
    plan = Plan(personalize=replace(PLAN.personalize, rounds=1), evaluate=evaluate)

    with pytest.raises(ValueError, match=f"none of the {measured} devices that are evaluated during"):
        pipeline(task, offset(task), plan)

    assert pipeline(task, offset(task), replace(plan, evaluate=Evaluation())).summary["early_stopping"]


def test_an_executor_that_cannot_go_back_is_refused_before_training() -> None:
    task = passing_task()
    own = personalization_of(offset(task))

    class Older:
        """An executor from before early stopping."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def devices(self) -> Any:
            return self._inner.devices()

        def ask(self, orders: Any) -> Any:
            return self._inner.ask(orders)

        def close(self, *round: Any) -> None:
            self._inner.close(*round)

    older = Older(local_executor(task, own, PLAN, MemoryStore(), seed=1))

    with pytest.raises(ConfigError, match=r"needs an executor with a method `restore\(label\)`, and Older"):
        pipeline(task, own, PLAN, executor=older)
    impatient = replace(PLAN, pretrain=None, personalize=replace(PLAN.personalize, patience=0, rounds=1))
    pipeline(task, own, impatient, executor=older)


def test_a_stage_that_ends_without_a_measurement_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = passing_task(metrics={"none": lambda *_: None})
    training = replace(PLAN.personalize, rounds=2)

    result = pipeline(task, offset(task), Plan(personalize=training), out=tmp_path / "run")

    assert result.summary["early_stopping"]["personalized"]["best_round"] is None
    words = "arly stopping had no effect in {}`personalized`: no device had a metric on its validation rows"
    assert words.format("") in caplog.text
    assert f"e{words.format('the stage ')}" in warnings_of(RunFolder(tmp_path / "run"))


@pytest.mark.parametrize(
    ("patience", "words"),
    [
        (2, "`personalize.patience` needs validation rows, and none of the 6 devices that are evaluated"),
        (-1, "[personalize] `patience` must be 0 or above, got -1."),
    ],
)
def test_patience_in_a_config_that_cannot_work_is_an_error_of_its_section(patience: int, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        built("fedalt", personalize={"patience": patience})
