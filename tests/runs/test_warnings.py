"""Warnings about a finished run: a model that diverged is called that."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from partita import CannotDo, Evaluation, FedAvg, Finetuning, Metric, Partition, Plan, Training, pipeline
from partita.data.unseen import is_unseen
from partita.device.visit import Visitor
from partita.protocol import Order
from partita.report.run.page import run_page
from partita.runs.folder import RunFolder
from partita.runs.warnings import divergence, has_failed_stage, warnings_of
from small import Both, Point, affine_devices, affine_task, point_task


def pretrained(out: Path, rounds: int) -> RunFolder:
    # A step at rate 3 on (w - 3)^2 / 2 takes w - 3 to -2 (w - 3): every step multiplies the loss by 4.
    task = point_task({"d0": 3.0}, model=Point)
    training = Training(method=FedAvg(shared_lr=3.0), rounds=rounds, devices_per_round=1)
    pipeline(task, Partition(Point()), Plan(pretrain=training), out=out)
    return RunFolder(out)


def test_a_loss_a_hundred_times_that_of_the_start_is_a_divergence(tmp_path: Path) -> None:
    large, larger = (pretrained(tmp_path / str(rounds), rounds) for rounds in (3, 4))

    # 9/2 at the start; 4^3 = 64 times that, and 4^4 = 256 times.
    assert list(divergence(large)) == []
    assert list(divergence(larger)) == [
        "the run diverged in the stage `pretrained`: the mean loss on training examples is 1152, and was 4.5 "
        "at the start"
    ]
    assert run_page(larger).answer.startswith("The run diverged in the stage `pretrained`: the mean loss on")
    assert run_page(large).answer.startswith("No personalization: ")


def test_rounds_have_the_loss_before_the_first_step(tmp_path: Path) -> None:
    run = pretrained(tmp_path / "run", 3)

    lines = [line for line in run.rounds() if line["work"] == "update"]
    assert [line["start_loss"] for line in lines] == [4.5, 4 * 4.5, 16 * 4.5]


@pytest.mark.parametrize(("epochs", "has_diverged"), [(3, False), (4, True)])
def test_a_later_stage_is_compared_with_the_start_of_the_run(
    epochs: int, *, has_diverged: bool, tmp_path: Path
) -> None:
    # u + v begins at 1, the target is 3: the loss is 2 at the start, and 4 times as large after each epoch.
    plan = Plan(finetune=Finetuning(personal_lr=3.0, epochs=epochs))

    pipeline(point_task(), Partition(Both(), personal="v"), plan, out=tmp_path / "run")

    told = [warning for warning in warnings_of(RunFolder(tmp_path / "run")) if "diverged" in warning]
    assert len(told) == has_diverged
    assert all(
        "`finetuned`: the mean loss on training examples is 512, and was 2 at" in text for text in told
    )


def test_an_error_far_above_the_pretrained_models_is_a_divergence(tmp_path: Path) -> None:
    # Two steps: the loss is 16 times as large, |u + v - 3|^4 is 2^(2 * 4) = 256 times 2^4.
    def fourth_power(predictions: Tensor, targets: Tensor) -> float:
        return (predictions - targets).pow(4).mean().item()

    task = point_task()
    task = affine_task(
        model=Both,
        devices={device: task.devices[device] for device in task.devices},
        metrics={"error": Metric(fourth_power, "down")},
    )

    pipeline(
        task,
        Partition(Both(), personal="v"),
        Plan(finetune=Finetuning(personal_lr=3.0, epochs=2)),
        out=tmp_path / "run",
    )

    assert list(divergence(RunFolder(tmp_path / "run"))) == [
        "the run diverged in the stage `finetuned`: the test error is 4096, and was 16 at the start"
    ]


def test_the_page_of_a_run_whose_stage_failed_begins_with_it(tmp_path: Path) -> None:
    devices = affine_devices()
    for device in list(devices)[:4]:
        inputs, targets = devices[device]["train"]
        devices[device]["train"] = inputs, targets * float("nan")
    task = affine_task(devices=devices)

    pipeline(
        task,
        Partition(task.model(), personal="offset"),
        Plan(finetune=Finetuning()),
        out=tmp_path / "run",
    )

    page = run_page(RunFolder(tmp_path / "run"))
    start = (
        "The stage `finetuned` failed and has no result: 4 of 6 devices failed in it (d0: The loss became nan"
    )
    assert page.answer.startswith(start)
    assert "better" not in page.answer
    assert "No personalization" not in page.answer
    (models,) = [table for table in page.tables if table.name == "models"]
    assert models.columns[-1] == "failed"
    assert list(models.rows[1]) == ["FT (part.)", *[None] * 6, 4]
    assert models.notes[0].startswith(f"Warning: {start[0].lower()}{start[1:]}")


def test_means_are_compared_on_the_devices_that_have_both(tmp_path: Path) -> None:
    # All begin at 1. d0 has a target of 9 and fails; d1 and d2 have a target of 3, and reach 2 and 2.
    task = point_task({"d0": 9.0, "d1": 3.0, "d2": 3.0})
    devices = {device: dict(task.devices[device]) for device in task.devices}
    inputs, targets = devices["d0"]["train"]
    devices["d0"]["train"] = inputs, targets * float("nan")

    pipeline(
        affine_task(model=Both, devices=devices),
        Partition(Both(), personal="v"),
        Plan(finetune=Finetuning(personal_lr=0.5, epochs=1)),
        out=tmp_path / "run",
    )

    page = run_page(RunFolder(tmp_path / "run"))
    assert page.answer == (
        "FT (part.) has a test closeness of -1.0000, 1.0000 better than the model that it began with (95 % "
        "interval +1.0000 to +1.0000, paired over 2 devices and 1 seed): all of it by fine-tuning on each device."
    )
    assert page.details == ["Of 2 devices: 2 helped, 0 hurt, 0 unchanged, 1 failed."]


@pytest.mark.parametrize("failing", [1, 5])
def test_unseen_devices_that_fail_are_a_warning_and_most_of_them_a_failed_stage(
    tmp_path: Path, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = affine_devices(12)
    unseen = [device for device in devices if is_unseen(device, 0.3)]
    finetune = Visitor._finetune

    def fail(self: Visitor, bench: Any, order: Order, work: Any) -> Any:
        if order.device in unseen[:failing]:
            raise CannotDo("Broken.")
        return finetune(self, bench, order, work)

    monkeypatch.setattr(Visitor, "_finetune", fail)
    task = affine_task(devices=devices)
    plan = Plan(finetune=Finetuning(epochs=1), evaluate=Evaluation(unseen=0.3))

    pipeline(task, Partition(task.model(), personal="offset"), plan, out=tmp_path / "run")

    run, stage = RunFolder(tmp_path / "run"), "the stage `finetuned` has no result on unseen devices"
    one, many = "1 unseen device failed in at least one", "5 unseen devices failed in at least one"
    assert len(unseen) == 5
    assert has_failed_stage(run) == (failing == 5)
    told = warnings_of(run)
    if failing == 1:
        assert told == [f"{one} round (d1: Broken.)"]
    else:
        assert told[0] == f"{stage}: 5 of 5 unseen devices failed in it (d1: Broken)"
        assert told[1].startswith(f"{many} round (d1: Broken.; d5: Broken.; d6: Broken.; the others are in")


@pytest.mark.parametrize("failing", [1, 4])
def test_evaluations_that_fail_are_a_warning_and_most_of_them_a_failed_stage(
    tmp_path: Path, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = Visitor._evaluate

    def fail(self: Visitor, bench: Any, order: Order, *more: Any) -> Any:
        if order.device in list(task.devices)[:failing]:
            raise CannotDo("Broken.")
        return evaluate(self, bench, order, *more)

    monkeypatch.setattr(Visitor, "_evaluate", fail)
    task = affine_task()

    pipeline(task, Partition(task.model(), personal="offset"), Plan(), out=tmp_path / "run")

    run = RunFolder(tmp_path / "run")
    told, first = warnings_of(run), next(iter(task.devices))
    assert len(task.devices) == 6
    assert has_failed_stage(run) == (failing == 4)
    if failing == 1:
        assert told[0] == f"1 device failed in at least one round ({first}: Broken.)"
        assert told[1].endswith(f" ({first}: its evaluation failed: Broken)")
    else:
        assert f"4 of 6 devices failed in it ({first}: Broken)" in told[0]
