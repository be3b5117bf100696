"""Failures are not results: a device whose training failed has no metric for that stage."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from marks import slow_but
from partita import (
    Devices,
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
from partita.api.result import Result
from partita.errors import TooManyFailed
from partita.params import digest_of
from partita.protocol import Stage
from partita.runs.folder import RunFolder
from partita.server.round import Outcome
from partita.training.failures import FailureLimit, failures_by_stage
from partita.training.plan import Turn
from small import Both, affine_devices, affine_task, point_task, same_bits

NAN = float("nan")


def spoilt(count: int, split: str = "train") -> Any:
    """The usual six devices; the training targets of the first ones are not numbers."""
    devices = affine_devices()
    for device in list(devices)[:count]:
        inputs, targets = devices[device][split]
        devices[device][split] = inputs, targets * NAN
    return devices


def run(task: Task, *, partition: Partition | None = None, **stages: Any) -> Result:
    return pipeline(task, partition or Partition(task.model(), personal="offset"), Plan(**stages))


def rows_of(result: Result, stage: str, split: str = "test") -> dict[str, Any]:
    rows = result.devices.to_pylist()
    return {row["device"]: row for row in rows if (row["stage"], row["split"]) == (stage, split)}


def personalizing(rounds: int = 2, **settings: Any) -> Training:
    return Training(method=FedAlt(shared_lr=0.1, **settings), rounds=rounds, devices_per_round=6)


@pytest.mark.parametrize(
    ("stage", "stages"),
    [("personalized", {"personalize": personalizing()}), ("finetuned", {"finetune": Finetuning()})],
)
def test_a_device_whose_training_failed_has_no_metric_for_that_stage(stage: str, stages: Any) -> None:
    result = run(affine_task(devices=spoilt(2)), **stages)

    for device, row in rows_of(result, stage).items():
        has_failed = device in ("d0", "d1")
        assert (row["metric"] is None, row["loss"] is None) == (has_failed, has_failed)
        assert row["reason"] == ("training failed: The loss became nan in step 1." if has_failed else None)
        assert row["examples"] == 4
    statistics = result.summary["stages"][stage]
    assert (statistics["devices"], statistics["failed"]) == (4, 2)
    assert statistics["helped"] + statistics["hurt"] + statistics["same"] == 4
    # The global model needs no training by the device.
    assert all(row["metric"] is not None for row in rows_of(result, "pretrained").values())


def test_a_stage_in_which_more_than_half_of_the_devices_failed_has_no_result() -> None:
    half, more = (run(affine_task(devices=spoilt(count)), finetune=Finetuning()) for count in (3, 4))

    assert (half.summary["failed"], half.summary["stages"]["finetuned"]["devices"]) == ({}, 3)
    assert list(more.summary["stages"]) == ["pretrained"]
    assert more.summary["failed"] == {
        "finetuned": {"failed": 4, "devices": 6, "reason": "d0: The loss became nan in step 1."}
    }


def test_the_share_of_a_stage_that_may_fail_can_be_set() -> None:
    more, fewer = (
        run(affine_task(devices=spoilt(count)), finetune=Finetuning(), max_failed=share)
        for count, share in ((5, 0.9), (1, 0.1))
    )

    assert (more.summary["failed"], more.summary["stages"]["finetuned"]["devices"]) == ({}, 1)
    assert fewer.summary["failed"]["finetuned"]["failed"] == 1


def test_a_stage_in_which_all_devices_failed_has_no_result_whatever_may_fail() -> None:
    result = run(affine_task(devices=spoilt(6)), finetune=Finetuning(), max_failed=1.0)

    assert result.summary["failed"]["finetuned"]["failed"] == 6


def ended(limit: FailureLimit, *rounds: tuple[int, int]) -> int | None:
    """Return in which of some rounds, given as numbers of devices asked and failed, a limit ends the run."""
    for number, (asked, failed) in enumerate(rounds):
        devices = [f"d{n}" for n in range(asked)]
        reasons = dict.fromkeys(devices[:failed], "No.")
        try:
            limit.check(Turn(Stage.PERSONALIZED, "update", number), Outcome(asked=devices, failed=reasons))
        except TooManyFailed:
            return number
        limit.add({"work": "update", "asked": devices, "failed": reasons})
    return None


@pytest.mark.parametrize(
    ("share", "rounds", "end"),
    [
        # A cohort of 20 or more counts alone.
        (0.5, [(20, 10), (20, 11)], 1),
        (0.5, [(100, 50), (100, 50), (100, 51)], 2),
        (0.2, [(50, 10), (50, 11)], 1),
        # A smaller one with the rounds before it: more than half of 20 visits must have failed.
        (0.5, [(10, 10), (10, 0), (10, 10), (10, 1)], 3),
        (0.5, [(12, 11)], 0),
        (0.5, [(6, 4), (6, 4), (6, 2), (6, 3)], 3),
        (0.5, [(6, 4), (6, 4), (6, 2), (6, 0), (6, 4), (6, 4)], None),
        # With one device a round, the eleventh failure ends the run if none of the last 20 is older.
        (0.5, [(1, 1)] * 12, 10),
        (0.5, [(1, 1), (1, 0)] * 50, None),
        (0.0, [(1, 0), (1, 1)], 1),
        (1.0, [(1, 1)] * 50 + [(50, 50)] * 5, None),
    ],
)
def test_too_many_failures_end_the_run(share: float, rounds: list[tuple[int, int]], end: int | None) -> None:
    assert ended(FailureLimit(share), *rounds) == end


def test_evaluations_and_successes_do_not_end_a_run() -> None:
    limit = FailureLimit(0.5)
    limit.add({"work": "evaluate", "asked": ["a"] * 100, "failed": dict.fromkeys("abcdefghijklmn", "No.")})

    assert ended(limit, (10, 0), (10, 4)) is None


def wounded(folder: Path, devices: int = 24) -> Task:
    """A task of which 60 % of the devices fail while a file `broken` is there."""
    whole = affine_devices(devices)
    own = {f"d{n}" for n in range(devices) if n % 5 < 3}
    broken = {
        device: {**splits, "train": (splits["train"][0], splits["train"][1] * NAN)}
        for device, splits in whole.items()
    }

    def load(device: str) -> Any:
        return (broken if device in own and (folder / "broken").exists() else whole)[device]

    return affine_task(devices=Devices(whole, load))


@pytest.mark.parametrize("workers", slow_but([1, 2], 1))
def test_a_round_in_which_too_many_failed_is_not_counted(workers: int, tmp_path: Path) -> None:
    training = Training(method=FedAlt(shared_lr=0.1), rounds=4, devices_per_round=24)
    task, plan = wounded(tmp_path), Plan(personalize=training)
    partition = Partition(task.model(), personal="offset")
    expected = pipeline(task, partition, plan)

    def wound(line: Any, done: int, total: int) -> None:
        if (line["work"], line["round"]) == ("update", 1):
            (tmp_path / "broken").touch()

    def go(**options: Any) -> Result:
        return pipeline(task, partition, plan, out=tmp_path / "run", workers=workers, **options)

    with pytest.raises(TooManyFailed) as first:
        go(watch=wound)
    with pytest.raises(TooManyFailed) as again:
        go(resume=True)
    committed = [line["round"] for line in RunFolder(tmp_path / "run").rounds() if line["work"] == "update"]
    (tmp_path / "broken").unlink()
    result = go(resume=True)

    assert str(first.value) == str(again.value)
    assert str(first.value).startswith(
        "15 of 24 devices failed in round 2 of `personalized`: more than the share `max_failed` = 0.5. Device 'd"
    )
    assert "The loss became nan in step 1. This round is not counted; all rounds before it" in str(
        first.value
    )
    assert committed == [0, 1]
    assert digest_of(result.shared) == digest_of(expected.shared)
    for device in task.devices:
        assert same_bits(result.personal(device), expected.personal(device))


def test_a_resumed_run_judges_with_the_rounds_before(tmp_path: Path) -> None:
    # 6 of 10 devices fail in round 2, and as many in round 1: neither would end the run by itself.
    (tmp_path / "broken").touch()
    training = Training(method=FedAlt(shared_lr=0.1), rounds=4, devices_per_round=10)
    task, plan = wounded(tmp_path), Plan(personalize=training)
    partition = Partition(task.model(), personal="offset")
    messages: list[str] = []

    for resume in (False, True, True):
        with pytest.raises(TooManyFailed) as caught:
            pipeline(task, partition, plan, out=tmp_path / "run", resume=resume)
        messages.append(str(caught.value))

    assert len(set(messages)) == 1
    assert "6 of 10 devices failed in round 2 of `personalized`, and 12 of 20 in the last 2" in messages[0]
    pipeline(task, partition, Plan(personalize=training, max_failed=0.9), out=tmp_path / "run", resume=True)


def test_the_message_names_the_commonest_reason() -> None:
    reasons = {"a": "Off.", **dict.fromkeys("bcdefghijk", "No battery.")}
    outcome = Outcome(asked=list("abcdefghijklmnopqrst"), failed=reasons)

    with pytest.raises(TooManyFailed, match="Device 'b', the reason of 10: No battery. This round"):
        FailureLimit(0.5).check(Turn(Stage.PRETRAINED, "update", 0), outcome)


def test_a_later_visit_that_succeeds_makes_up_for_one_that_failed() -> None:
    lines = [
        {"work": "update", "asked": ["a", "b", "c"], "heard": ["a"], "failed": {"b": "No.", "c": "No."}},
        {"work": "evaluate", "asked": ["a", "b"], "heard": ["b"], "failed": {"a": "Asleep."}},
        {"work": "update", "asked": ["a", "b"], "heard": ["b"], "failed": {"a": "Now I."}},
    ]

    found = failures_by_stage({"stage": "personalized", **line} for line in lines)["personalized"]

    assert found.reasons == {"c": "No.", "a": "Now I."}
    assert found.asked == 3


def test_a_device_that_was_left_out_was_not_trained() -> None:
    line = {"stage": "pretrained", "work": "update", "heard": ["a"], "failed": {"b": "No."}}

    found = failures_by_stage([{**line, "asked": ["a", "b", "c"], "left_out": ["c"]}])["pretrained"]

    assert (found.asked, found.reasons) == (2, {"b": "No."})


def test_fine_tuning_counts_each_block_of_devices() -> None:
    line = {"stage": "finetuned", "work": "finetune", "failed": {}}

    found = failures_by_stage({**line, "asked": block, "heard": block} for block in (["a", "b"], ["c"]))

    assert found["finetuned"].asked == 3


def test_a_device_that_was_never_asked_is_scored_with_the_start() -> None:
    training = Training(method=FedAlt(shared_lr=0.0, personal_lr=0.1), rounds=1, devices_per_round=1)
    result = run(affine_task(devices=spoilt(0)), personalize=training)

    before, after = (rows_of(result, stage) for stage in ("pretrained", "personalized"))

    assert sum(before[device]["metric"] != after[device]["metric"] for device in before) == 1
    assert result.summary["stages"]["personalized"]["devices"] == 6


@pytest.mark.parametrize("is_stateful", [True, False])
def test_a_model_without_a_part_of_the_devices_own_keeps_its_metric(*, is_stateful: bool) -> None:
    # With nothing personal, or nothing kept, all devices evaluate a model that others have trained.
    task = affine_task(devices=spoilt(2))
    partition = Partition(task.model(), personal="offset" if not is_stateful else ())

    result = run(task, partition=partition, personalize=personalizing(stateful=is_stateful))

    assert result.summary["stages"]["personalized"]["devices"] == 6
    assert result.summary["stages"]["personalized"]["failed"] == 0


def test_a_shared_model_that_most_devices_failed_to_train_has_no_result_either() -> None:
    task = affine_task(devices=spoilt(4))

    result = run(task, partition=Partition(task.model()), personalize=personalizing())

    assert "personalized" not in result.summary["stages"]
    assert result.summary["failed"]["personalized"]["failed"] == 4


def test_a_device_that_failed_is_served_the_pretrained_model() -> None:
    # Every target is 3, the model begins at u + v = 1: fine-tuning improves each device that it can train.
    task = point_task({f"d{n}": 3.0 for n in range(5)})
    inputs, targets = task.devices["d0"]["train"]
    devices = {device: dict(task.devices[device]) for device in task.devices}
    devices["d0"]["train"] = inputs, targets * NAN

    result = run(
        affine_task(model=Both, devices=devices),
        partition=Partition(Both(), personal="v"),
        finetune=Finetuning(personal_lr=0.1),
        evaluate=Evaluation(choose="validation"),
    )

    served = rows_of(result, "served")
    assert [served[device]["model"] for device in sorted(served)] == ["global", *["personal"] * 4]
    assert served["d0"]["metric"] == -2.0
    assert result.summary["stages"]["served"]["devices"] == 5


def test_nothing_is_served_from_a_stage_that_failed() -> None:
    devices = {device: {**own, "validation": own["test"]} for device, own in affine_devices().items()}
    for own in devices.values():
        own["train"] = own["train"][0], own["train"][1] * NAN

    result = run(
        affine_task(devices=devices),
        finetune=Finetuning(),
        evaluate=Evaluation(choose="validation"),
    )

    assert list(result.summary["stages"]) == ["pretrained"]
    assert set(result.summary["failed"]) == {"finetuned", "served"}
    assert {row["model"] for row in rows_of(result, "served").values()} == {"global"}


def test_predictions_that_are_not_numbers_have_no_metric() -> None:
    # An argmax over NaN names the first class: a model that is no longer finite would be half right.
    def accuracy(predictions: torch.Tensor, targets: torch.Tensor) -> float:
        return 1.0

    def predict(model: Any, batch: Any) -> Any:
        return model(batch[0]) * NAN, batch[1]

    result = run(affine_task(predict=predict, metrics={"accuracy": accuracy}), finetune=Finetuning())

    row = rows_of(result, "finetuned")["d0"]
    assert (row["metric"], row["reason"]) == (None, "`accuracy`: predictions are not a number")


class Stopped(Exception):
    pass


def test_a_resumed_run_knows_which_devices_failed(tmp_path: Path) -> None:
    task = affine_task(devices=spoilt(2))
    partition = Partition(task.model(), personal="offset")
    plan = Plan(personalize=personalizing(3), finetune=Finetuning(), evaluate=Evaluation(every=1))
    whole = pipeline(task, partition, plan, out=tmp_path / "whole")

    def stop(line: Any, done: int, total: int) -> None:
        raise Stopped

    for resume in (False, *[True] * 20):
        try:
            pipeline(task, partition, plan, out=tmp_path / "parts", resume=resume, watch=stop)
            break
        except Stopped:
            pass

    parts = tmp_path / "parts"
    assert (parts / "summary.json").read_bytes() == (tmp_path / "whole/summary.json").read_bytes()
    assert (parts / "devices.parquet").read_bytes() == (tmp_path / "whole/devices.parquet").read_bytes()
    lines, expected = (
        [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        for folder in (parts, tmp_path / "whole")
    )
    assert [{**line, "seconds": 0} for line in lines] == [{**line, "seconds": 0} for line in expected]
    assert whole.summary["stages"]["finetuned"]["failed"] == 2


def test_a_stage_that_began_from_a_failed_one_has_no_result() -> None:
    # In pretraining, four of the six devices fail; in fine-tuning, their targets are numbers again.
    whole, nan = affine_devices(), spoilt(4)
    asked: dict[str, int] = dict.fromkeys(whole, 0)

    def load(device: str) -> Any:
        asked[device] += 1
        return (nan if asked[device] == 1 + (device == "d0") else whole)[device]

    result = run(
        affine_task(devices=Devices(whole, load)),
        pretrain=Training(method=FedAvg(shared_lr=0.1), rounds=1, devices_per_round=6),
        finetune=Finetuning(),
    )

    assert result.summary["stages"] == {}
    assert result.summary["failed"]["pretrained"]["failed"] == 4
    assert result.summary["failed"]["finetuned"] == {
        "failed": 0,
        "devices": 6,
        "reason": "it began from the stage `pretrained`, which failed",
    }
