"""A device that fails is left out of its round, and of no other, with the same bits in every executor."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from marks import slow_but
from partita import (
    Devices,
    Evaluation,
    FedAlt,
    Finetuning,
    LocalAlt,
    LocalScaffold,
    Method,
    Partition,
    Plan,
    Task,
    Training,
    pipeline,
)
from partita.errors import CannotDo
from partita.params import cloned
from partita.runs.folder import RunFolder
from partita.runs.tensors import shared_tensors
from ranks import content_of, run_on_two_ranks
from small import Affine, affine_devices, affine_task, negative_error, same_bits, square_error

PLAN = Plan(
    personalize=Training(method=FedAlt(shared_lr=0.1, batch_size=4), rounds=3, devices_per_round=4),
    finetune=Finetuning(personal_lr=0.1, batch_size=4),
)
FAULTY = ("d1", "d4")
MARK = 1e6
"""The first input of every example of a faulty device, by which code that sees no device id knows it."""


def marked_devices() -> dict[str, Any]:
    devices = affine_devices()
    for device in FAULTY:
        for inputs, _ in devices[device].values():
            inputs[:, 0] = MARK
    return devices


def is_faulty(inputs: Tensor) -> bool:
    return bool((inputs[:, 0] == MARK).any())


class Careful(Affine):
    """A model that raises on the examples of a faulty device, and is not itself any more after that."""

    def forward(self, inputs: Tensor) -> Tensor:
        if is_faulty(inputs):
            self.slope = nn.Linear(7, 7)
            raise RuntimeError("Out of range.")
        return super().forward(inputs)


class Unreadable(torch.utils.data.Dataset[Any]):
    """Examples that cannot be read."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        raise OSError(5, "Input/output error")


def raising(error: Exception) -> Callable[..., Any]:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if is_faulty(batch[0]):
            raise error
        return square_error(model, batch)

    return loss


def predicted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return model(batch[0]), torch.full_like(batch[1], MARK) if is_faulty(batch[0]) else batch[1]


def metric(predictions: Tensor, targets: Tensor) -> float:
    if (targets == MARK).any():
        raise ZeroDivisionError("No targets.")
    return negative_error(predictions, targets)


def load(device: str) -> Any:
    if device in FAULTY:
        raise FileNotFoundError(2, "No such file", f"{device}.csv")
    return affine_devices()[device]


def unreadable() -> dict[str, Any]:
    return affine_devices() | {device: {"train": Unreadable(), "test": Unreadable()} for device in FAULTY}


def not_finite(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return square_error(model, batch) * (float("inf") if is_faulty(batch[0]) else 1.0)


CASES: dict[str, tuple[Callable[[], Task], str]] = {
    "loss": (
        lambda: affine_task(devices=marked_devices(), loss=raising(KeyError("weights"))),
        "KeyError: 'weights' (test_faults.py, line ",
    ),
    "cannot do": (
        lambda: affine_task(devices=marked_devices(), loss=raising(CannotDo("No battery."))),
        "No battery.",
    ),
    "not finite": (
        lambda: affine_task(devices=marked_devices(), loss=not_finite),
        "The loss became inf in step 1.",
    ),
    "model": (
        lambda: affine_task(devices=marked_devices(), model=Careful),
        "RuntimeError: Out of range. (test_faults.py, line ",
    ),
    "data": (
        lambda: affine_task(devices=Devices(affine_devices(), load)),
        "FileNotFoundError: [Errno 2] No such file: ",
    ),
    "examples": (
        lambda: affine_task(devices=unreadable()),
        "OSError: [Errno 5] Input/output error (test_faults.py, line ",
    ),
    "metric": (
        lambda: affine_task(devices=marked_devices(), predict=predicted, metrics={"m": metric}),
        "ZeroDivisionError: No targets. (test_faults.py, line ",
    ),
}


def offset(task: Task) -> Partition:
    return Partition(task.model(), personal="offset")


@pytest.mark.parametrize("case", slow_but(CASES, "not finite"))
def test_a_faulty_device_is_left_out_with_the_same_bits_in_every_executor(case: str, tmp_path: Path) -> None:
    make, reason = CASES[case]
    skip: dict[str, Any] = {"on_error": "skip"}

    for folder, workers in (("serial", 1), ("workers", 2)):
        task = make()
        pipeline(task, offset(task), PLAN, out=tmp_path / folder, workers=workers, **skip)
    task = make()
    run_on_two_ranks(task, offset(task), PLAN, tmp_path / "ranks", **skip)

    expected = content_of(tmp_path / "serial")
    assert content_of(tmp_path / "workers") == expected
    assert content_of(tmp_path / "ranks") == expected
    run = RunFolder(tmp_path / "serial")
    lines = [line for line in run.rounds() if (line["work"] == "evaluate") == (case == "metric")]
    assert any(line["failed"] for line in lines)
    for line in lines:
        assert list(line["failed"]) == [device for device in line["asked"] if device in FAULTY]
        assert line["heard"] == [device for device in line["asked"] if device not in FAULTY]
        assert all(text.startswith(reason) for text in line["failed"].values())


@pytest.mark.slow
@pytest.mark.parametrize("case", ["cannot do", "not finite"])
@pytest.mark.parametrize("local", [LocalAlt, LocalScaffold])
def test_a_faulty_device_is_left_out_with_any_number_of_worker_processes(
    case: str, local: Any, tmp_path: Path
) -> None:
    assert PLAN.personalize is not None
    method = replace(PLAN.personalize.method, local=local, personal_epochs=int(local is LocalAlt))
    plan = replace(PLAN, personalize=replace(PLAN.personalize, method=method))
    # Tests see one core: with a time limit, there is one worker process, and with `workers=1` none.
    one: dict[str, Any] = {"workers": 0, "timeout": 1000}
    options = {"serial": {"workers": 1}, "one": one, "two": {"workers": 2}, "three": {"workers": 3}}
    for name, own in options.items():
        task = CASES[case][0]()
        pipeline(task, offset(task), plan, out=tmp_path / name, **own)
    task = CASES[case][0]()
    run_on_two_ranks(task, offset(task), plan, tmp_path / "ranks")

    contents = [content_of(tmp_path / name) for name in (*options, "ranks")]

    assert [content == contents[0] for content in contents] == [True] * 5
    assert any(line["failed"] for line in updates(tmp_path / "serial"))


def test_a_faulty_device_does_not_change_what_the_others_learn(tmp_path: Path) -> None:
    # All devices are asked in each round: without the faulty ones the same devices have the same seeds.
    training = Training(method=FedAlt(shared_lr=0.1, batch_size=4), rounds=3, devices_per_round=6)
    whole = Plan(personalize=training)
    rest = {device: own for device, own in marked_devices().items() if device not in FAULTY}
    fewer = Plan(personalize=replace(training, devices_per_round=4))

    task = affine_task(devices=marked_devices(), model=Careful)
    faulty = pipeline(task, offset(task), whole, out=tmp_path / "faulty", on_error="skip")
    sound = pipeline(affine_task(devices=rest), offset(task), fewer, out=tmp_path / "sound")

    assert {name: tensor.tolist() for name, tensor in faulty.shared.items()} == {
        name: tensor.tolist() for name, tensor in sound.shared.items()
    }
    kept, expected = (
        {file.name: file.read_bytes() for file in (tmp_path / name / "personal").iterdir()}
        for name in ("faulty", "sound")
    )
    assert kept == expected, "the devices that failed have kept nothing"


def test_an_exception_ends_the_run_by_default() -> None:
    task = affine_task(devices=Devices(affine_devices(), load))

    with pytest.raises(FileNotFoundError) as caught:
        pipeline(task, offset(task), PLAN)

    line = load.__code__.co_firstlineno + 2
    assert caught.value.__notes__ == [
        f"On device 'd1', in round 0 of `pretrained` (test_faults.py, line {line})."
    ]


def test_a_run_whose_first_device_is_faulty_begins(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    def load(device: str) -> Any:
        if device == "d0":
            raise ValueError("No such device.")
        return affine_devices()[device]

    task = affine_task(devices=Devices(affine_devices(), load))
    result = pipeline(task, offset(task), PLAN, out=tmp_path / "run", on_error="skip")

    assert "A check of the task failed on device 'd0': ValueError: No such device." in caplog.text
    assert result.summary["stages"]["finetuned"]["devices"] == 5


def over_selecting(count: int, asked: int = 3) -> Plan:
    method = FedAlt(shared_lr=0.1, batch_size=4)
    return Plan(
        personalize=Training(method=method, rounds=4, devices_per_round=asked, over_select=count),
        finetune=Finetuning(personal_lr=0.1, batch_size=4),
    )


def everywhere(make: Callable[[], Task], plan: Plan, folder: Path, **options: Any) -> dict[str, Any]:
    """Run a plan with every executor, and return the content of their folders, which must be the same."""
    for name, workers in (("serial", 1), ("workers", 3)):
        task = make()
        pipeline(task, offset(task), plan, out=folder / name, workers=workers, **options)
    task = make()
    run_on_two_ranks(task, offset(task), plan, folder / "ranks", **options)
    content = content_of(folder / "serial")
    assert content_of(folder / "workers") == content
    assert content_of(folder / "ranks") == content
    return content


def updates(folder: Path) -> list[Any]:
    return [line for line in RunFolder(folder).rounds() if line["work"] == "update"]


@pytest.mark.slow
def test_devices_that_are_not_needed_change_no_bit(tmp_path: Path) -> None:
    plain = everywhere(affine_task, over_selecting(0), tmp_path / "plain")

    spare = everywhere(affine_task, over_selecting(2), tmp_path / "spare")

    del plain["rounds"], spare["rounds"]
    assert spare == plain
    before, after = updates(tmp_path / "plain/serial"), updates(tmp_path / "spare/serial")
    for one, other in zip(before, after, strict=True):
        assert other["heard"] == one["heard"] == one["asked"] == other["asked"][:3]
        assert other["left_out"] == other["asked"][3:]
        assert len(set(other["asked"])) == 5
        assert other["bytes"]["up"] * 3 == one["bytes"]["up"] * 5


def test_further_devices_take_the_place_of_those_that_fail(tmp_path: Path) -> None:
    def make() -> Task:
        return affine_task(devices=marked_devices(), loss=not_finite)

    everywhere(make, over_selecting(2), tmp_path)

    for line in updates(tmp_path / "serial"):
        sound = [device for device in line["asked"] if device not in FAULTY]
        assert line["heard"] == sound[:3]
        assert line.get("left_out", []) == sound[3:]
        assert list(line["failed"]) == [device for device in line["asked"] if device in FAULTY]


@pytest.mark.slow
def test_the_order_of_arrival_does_not_say_who_counts(tmp_path: Path) -> None:
    # A device takes the longer, the smaller its number: it has 5 training examples more than that.
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if model.training:
            time.sleep(0.01 * (10 - len(batch[1])))
        return not_finite(model, batch)

    method = FedAlt(shared_lr=0.1, batch_size=100)
    plan = Plan(personalize=Training(method=method, rounds=3, devices_per_round=2, over_select=3))
    for workers in (1, 2, 3):
        task = affine_task(devices=marked_devices(), loss=loss)
        pipeline(task, offset(task), plan, out=tmp_path / str(workers), workers=workers)

    expected = content_of(tmp_path / "1")
    assert content_of(tmp_path / "2") == expected
    assert content_of(tmp_path / "3") == expected
    lines = updates(tmp_path / "1")
    assert any(line["failed"] for line in lines)
    for line in lines:
        sound = [device for device in line["asked"] if device not in FAULTY]
        assert line["heard"] == sound[:2]


def test_a_device_that_is_left_out_keeps_its_v(tmp_path: Path) -> None:
    task = affine_task()
    first = Plan(
        personalize=Training(method=FedAlt(shared_lr=0.1), rounds=1, devices_per_round=2, over_select=4)
    )

    pipeline(task, offset(task), first, out=tmp_path / "run")

    run = RunFolder(tmp_path / "run")
    (line,) = (line for line in run.rounds() if line["work"] == "update")
    assert len(line["left_out"]) == 4
    assert len(list((tmp_path / "run/personal").iterdir())) == 2
    assert run.summary["stages"]["personalized"]["devices"] == 6


RULES: dict[str, dict[str, Any]] = {
    "median": {"aggregation": "median"},
    "trimmed mean": {"aggregation": "trimmed_mean", "trim": 0.3, "over_select": 1},
    "clipped mean": {"max_change_norm": 0.05},
    "clipped median, more asked": {"aggregation": "median", "max_change_norm": 0.05, "over_select": 2},
}


@pytest.mark.parametrize("rule", slow_but(RULES, "median"))
def test_rules_for_devices_that_are_not_trusted_have_the_same_bits_in_every_executor(
    rule: str, tmp_path: Path
) -> None:
    def make() -> Task:
        return affine_task(devices=marked_devices(), loss=not_finite)

    plain, robust = (
        replace(PLAN, personalize=replace(PLAN.personalize, **settings)) for settings in ({}, RULES[rule])
    )

    everywhere(make, robust, tmp_path)
    task = make()
    mean = pipeline(task, offset(task), plain)

    robust_run = RunFolder(tmp_path / "serial")
    assert any(line["failed"] for line in updates(tmp_path / "serial"))
    assert not same_bits(shared_tensors(robust_run, "personalized"), mean.shared), "the rule is used"


@pytest.mark.parametrize("norm", [0.0, 1e6])
def test_a_limit_that_no_change_reaches_changes_no_bit(norm: float) -> None:
    task = affine_task()
    assert PLAN.personalize is not None
    limited = replace(PLAN, personalize=replace(PLAN.personalize, max_change_norm=norm))

    with_limit, without = (pipeline(task, offset(task), plan) for plan in (limited, PLAN))

    assert same_bits(with_limit.shared, without.shared)


class Flipping(LocalAlt):
    """Train as usual, then multiply the change of the shared part by the factor of the device."""

    def __call__(self, model: Any, partition: Any, batches: Any, loss: Any) -> list[float]:
        shared = partition.of(model).shared
        before = cloned(shared)
        losses = super().__call__(model, partition, batches, loss)
        factor = next(iter(batches))[2][0]
        with torch.no_grad():
            for name, tensor in shared.items():
                tensor.copy_(before[name] + factor * (tensor - before[name]))
        return losses


def planted_task(planted: int, count: int = 10) -> Task:
    """A task with a common slope, of whose devices the first ones send -5 times what they have learned."""
    devices: dict[str, Any] = {}
    for number, (device, splits) in enumerate(affine_devices(count).items()):
        factor = -5.0 if number < planted else 1.0
        devices[device] = {
            split: (*fields, torch.full_like(fields[1], factor)) for split, fields in splits.items()
        }
    return affine_task(
        devices=devices,
        loss=lambda model, batch: square_error(model, batch[:2]),
        predict=lambda model, batch: (model(batch[0]), batch[1]),
    )


def error_of(planted: int, **rule: Any) -> float:
    """Return how far the slope is, after training with some planted devices, from the one that made the data."""
    task = planted_task(planted)
    method = Method(local=Flipping, shared_lr=0.2, personal_lr=0.2, weights="equal")
    training = Training(method=method, rounds=50, devices_per_round=10, **rule)
    result = pipeline(task, offset(task), Plan(personalize=training, evaluate=Evaluation(devices=1)))
    true = torch.randn(3, generator=torch.Generator().manual_seed(7))  # As `affine_devices` draws it.
    return (result.shared["slope.weight"][0] - true).norm().item()


@pytest.mark.slow
def test_planted_devices_break_the_mean_and_not_the_robust_rules() -> None:
    # 2 of 10 devices send -5 times their change: of the mean, 8 - 10 = -2 parts of 10 are left, a step away
    # from the solution. The slope that made the data has the norm 1.24.
    assert error_of(0) < 0.01
    assert error_of(2) > 1000
    assert error_of(2, aggregation="median") < 0.05
    assert error_of(2, aggregation="trimmed_mean", trim=0.2) < 0.05
    # Clipped to the same norm, 8 - 2 = 6 parts of 10 are left.
    assert error_of(2, max_change_norm=0.1) < 0.2
