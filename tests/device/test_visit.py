"""A visit: what it changes, what it replies, and what it leaves alone."""

import json
import random
import re
import sys
import weakref
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from partita import (
    CannotDo,
    Devices,
    FedAlt,
    FedAvg,
    FedSim,
    Finetuning,
    LocalAlt,
    Method,
    Partition,
    Personalization,
    Stage,
    Task,
)
from partita.device.roles import Role
from partita.device.settings import Computing
from partita.device.store import MemoryStore
from partita.device.visit import Visitor
from partita.errors import ConfigError
from partita.executors.serial import SerialExecutor
from partita.methods.descent import descend
from partita.methods.pfedme import LocalMoreau
from partita.models.full import Full, proximity
from partita.params import cloned, digest_of
from partita.partition import uses_batch_statistics
from partita.protocol import (
    Evaluate,
    Failure,
    Finetune,
    Order,
    Pace,
    Reply,
    Start,
    Tally,
    Update,
    derive_seed,
)
from partita.tasks.build import build_model
from small import Affine, Normed, affine_devices, affine_task, same_bits, square_error

UPDATE = FedAlt(shared_lr=0.1, batch_size=4).update
FINETUNE = Finetune(personal=Pace(lr=0.1, epochs=2))


class Setting:
    """One stage of one task, and orders in it."""

    def __init__(
        self,
        task: Task,
        method: Method | None = None,
        finetuning: Finetuning | None = None,
        **claims: Any,
    ) -> None:
        self.method = method or FedAlt(shared_lr=0.1, batch_size=4)
        penalty = claims.pop("penalty", None)
        self.partition = Partition(task.model(), **claims)
        own = Personalization(self.partition, penalty=penalty)
        self.parts = self.partition.of(build_model(task, own, seed=1))
        role = Role(
            personalization=own, method=self.method, finetuning=finetuning or Finetuning(batch_size=3)
        )
        self.task, self.roles = task, dict.fromkeys(Stage, role)
        self.store = MemoryStore()
        self.visitor = Visitor(task, dict.fromkeys(Stage, role), self.store, seed=1)
        self.shared = cloned(self.parts.shared)
        self.start = Start(
            digest=digest_of(self.parts.personal),
            personal=cloned(self.parts.personal),
            frozen=digest_of(self.parts.frozen),
        )

    def order(self, work: Update | Finetune | Evaluate, device: str = "d0", **changes: Any) -> Order:
        settings = {"stage": Stage.PERSONALIZED, "round": 0, "shared": self.shared, "start": self.start}
        return Order(device=device, work=work, **(settings | changes))

    def visit(self, work: Update | Finetune | Evaluate, device: str = "d0", **changes: Any) -> Reply:
        reply = self.visitor(self.order(work, device, **changes))
        assert isinstance(reply, Reply)
        return reply

    def executor(self) -> SerialExecutor:
        return SerialExecutor(self.task, self.roles, self.store, seed=1)

    def filed(self, device: str = "d0", label: str = "personalized-0") -> Mapping[str, Tensor]:
        self.store.commit(label, [device], [device])
        personal = self.store.load(device)
        assert personal is not None
        return personal


def test_an_update_replies_with_exactly_the_shared_names() -> None:
    setting = Setting(affine_task(), personal="offset")

    reply = setting.visit(UPDATE)

    assert reply.change is not None
    assert list(reply.change) == ["slope.weight"]
    assert reply.change["slope.weight"].shape == (1, 3)
    assert (reply.device, reply.weight) == ("d0", 5)


@pytest.mark.parametrize("work", [FINETUNE, Evaluate(model="personal"), Evaluate(model="global")])
def test_finetuning_and_evaluation_reply_with_no_tensor(work: Finetune | Evaluate) -> None:
    reply = Setting(affine_task(), personal="offset").visit(work)

    assert reply.change is None
    assert not any(isinstance(getattr(reply, field.name), Tensor) for field in fields(reply))
    values = [value for measures in reply.metrics.values() for value in measures.values()]
    assert values
    assert all(isinstance(value, int | float | None) for value in values)


def test_equal_weights_count_every_device_once() -> None:
    setting = Setting(affine_task(), FedAlt(shared_lr=0.1, weights="equal"), personal="offset")

    assert setting.visit(UPDATE).weight == 1


@pytest.mark.parametrize("work", [UPDATE, FINETUNE, Evaluate(model="personal")])
def test_what_was_read_from_the_store_is_not_held_while_the_model_computes(
    work: Update | Finetune | Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    read: list[weakref.ref[Tensor]] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        held.append(sum(ref() is not None for ref in read))
        return square_error(model, batch)

    setting = Setting(affine_task(loss=loss), personal="offset")
    setting.visit(UPDATE)
    kept = setting.filed()

    def load(device: str) -> dict[str, Tensor]:
        loaded = cloned(kept)
        read.extend(map(weakref.ref, loaded.values()))
        return loaded

    monkeypatch.setattr(setting.store, "load", load)
    setting.visit(work, round=1)

    assert read
    assert held[-1] == 0


@pytest.mark.parametrize("work", [FedAlt(shared_lr=0.1, shared_epochs=0).update, FINETUNE])
def test_a_personal_step_leaves_shared_and_frozen_tensors_bit_for_bit(work: Update | Finetune) -> None:
    task = affine_task(model=Normed)
    setting = Setting(task, FedAlt(shared_lr=0.1), personal="head.*", frozen="body.0.*")
    model = setting.visitor._workbench(setting.order(work)).model

    reply = setting.visit(work)

    parts = setting.partition.of(model)
    assert same_bits(parts.shared, setting.shared)
    assert same_bits(parts.frozen, setting.parts.frozen)
    assert not same_bits(setting.filed(), setting.start.personal or {})
    if reply.change is not None:
        assert not any(change.any() for change in reply.change.values())


def test_a_shared_step_leaves_the_personal_part_bit_for_bit() -> None:
    method = FedAlt(shared_lr=0.1, personal_epochs=0, batch_size=3)
    setting = Setting(affine_task(model=Normed), method, personal="head.*")

    reply = setting.visit(method.update)

    assert same_bits(setting.filed(), setting.start.personal or {})
    assert reply.change is not None
    assert reply.change["body.1.running_mean"].any()
    assert reply.change["body.1.num_batches_tracked"].item() == 2  # 5 examples in batches of 3


def test_one_visit_leaves_no_trace_in_the_next() -> None:
    class Counting(Affine):
        """Keeps a count outside of its state, which its output depends on."""

        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()), persistent=False)

        def forward(self, inputs: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(inputs) * self.calls

    setting = Setting(affine_task(model=Counting), personal="offset")

    first, _, again = (setting.visit(UPDATE, device) for device in ("d0", "d1", "d0"))

    assert same_bits(first.change or {}, again.change or {})


def test_a_buffer_that_the_model_replaces_is_still_loaded_anew() -> None:
    class Averaging(Affine):
        """Keeps a moving average by assignment, as people write it."""

        average: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("average", torch.zeros(()))

        def forward(self, inputs: Tensor) -> Tensor:
            self.average = 0.5 * self.average + 0.5 * inputs.mean().detach()
            return super().forward(inputs) + self.average

    setting = Setting(affine_task(model=Averaging), personal="offset")

    first, _, again = (setting.visit(UPDATE, device) for device in ("d0", "d1", "d0"))

    assert same_bits(first.change or {}, again.change or {})
    assert (first.change or {})["average"].item() != 0.0


def test_random_numbers_of_numpy_and_python_are_the_visits_own() -> None:
    def noisy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return square_error(model, batch) * (1 + random.random() + np.random.rand())

    setting = Setting(affine_task(loss=noisy), personal="offset")
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.rand()
    random.seed(5)
    np.random.seed(5)

    executor = setting.executor()
    (_, first), (_, again) = (executor.ask([setting.order(UPDATE)]) for _ in range(2))

    assert isinstance(first, Tally)
    assert isinstance(again, Tally)
    assert same_bits(first.totals.limbs, again.totals.limbs)
    assert (random.random(), np.random.rand()) == expected


def test_a_visit_runs_on_one_thread() -> None:
    seen: set[int] = set()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.add(torch.get_num_threads())
        return square_error(model, batch)

    setting = Setting(affine_task(loss=loss), personal="offset")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    list(setting.executor().ask([setting.order(UPDATE)]))
    after = torch.get_num_threads()
    torch.set_num_threads(threads)

    assert (seen, after) == ({1}, 2)


def test_finetuning_uses_its_optimizer_its_clipping_and_the_penalty() -> None:
    # Full batch, one step: Adam moves v by its rate; clipped SGD by rate times norm, whatever the gradient.
    def moved(**settings: Any) -> float:
        finetuning = Finetuning(batch_size=100, **settings)
        setting = Setting(affine_task(), finetuning=finetuning, personal="offset")
        setting.visit(Finetune(personal=Pace(lr=0.125, steps=1)), stage=Stage.FINETUNED)
        return abs(setting.filed(label="finetuned-0")["offset"].item())

    assert moved(optimizer=torch.optim.Adam) == pytest.approx(0.125, rel=1e-4)
    assert moved(max_grad_norm=0.5) == pytest.approx(0.0625, rel=1e-4)


def test_the_penalty_counts_in_training_and_not_in_evaluation() -> None:
    task = affine_task()
    whole = Finetuning(batch_size=100)
    plain = Setting(task, finetuning=whole, personal="offset")
    penalty = lambda model: 1e3 * (model.offset - 7).square().sum()  # noqa: E731
    pulled = Setting(task, finetuning=whole, personal="offset", penalty=penalty)
    step = Finetune(personal=Pace(lr=1e-4, steps=1))

    for setting in (plain, pulled):
        setting.visit(step)
    without, within = (setting.filed()["offset"].item() for setting in (plain, pulled))

    # The penalty's gradient at 0 is 2e3 (0 - 7) = -14,000: a step of 1e-4 goes 1.4 further.
    assert within - without == pytest.approx(1.4, rel=1e-4)
    before, after = (setting.visit(Evaluate(model="global")).metrics for setting in (plain, pulled))
    assert before == after


def test_a_loss_may_take_gradients_of_its_own() -> None:
    def with_gradient_penalty(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs = batch[0].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        return square_error(model, batch) + gradient.square().mean()

    setting = Setting(affine_task(loss=with_gradient_penalty), personal="offset")

    setting.visit(UPDATE)
    assert setting.visit(Evaluate(model="personal")).metrics["test"]["loss"]


def test_a_device_can_say_that_it_cannot() -> None:
    def load(device: str) -> dict:
        raise CannotDo("The disk is asleep.")

    setting = Setting(affine_task(devices=Devices(["d0"], load)), personal="offset")

    assert setting.visitor(setting.order(UPDATE)) == Failure(device="d0", reason="The disk is asleep.")


def test_visits_do_not_disturb_the_callers_random_numbers() -> None:
    setting = Setting(affine_task(), personal="offset")
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)

    list(setting.executor().ask([setting.order(UPDATE)]))

    assert torch.rand(1) == expected


def test_dropout_is_the_same_for_the_same_visit_and_not_for_another() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5), Affine())

    setting = Setting(affine_task(model=model), personal="1.offset")

    first, again, later = (setting.visit(UPDATE, round=n) for n in (0, 0, 1))

    assert same_bits(first.change or {}, again.change or {})
    assert not same_bits(first.change or {}, later.change or {})


def test_a_stateful_device_goes_on_from_what_it_kept() -> None:
    method = FedAlt(shared_lr=0.0, personal_lr=0.1, batch_size=100)
    setting = Setting(affine_task(), method, personal="offset")
    one_step = method.update

    setting.visit(one_step)
    first = setting.filed()["offset"].clone()
    setting.visit(one_step, round=1)
    second = setting.filed(label="personalized-1")["offset"]

    inputs, targets = affine_devices()["d0"]["train"]
    slope = setting.shared["slope.weight"].squeeze(0)
    expected = first - 0.1 * (inputs @ slope + first - targets).mean()
    assert second.item() == pytest.approx(expected.item(), abs=1e-6)


def test_a_stateless_device_starts_anew_and_keeps_nothing() -> None:
    setting = Setting(affine_task(), FedAlt(shared_lr=0.1, batch_size=4, stateful=False), personal="offset")

    first, again = (setting.visit(UPDATE) for _ in range(2))

    assert same_bits(first.change or {}, again.change or {})
    setting.store.commit("personalized-0", ["d0"], ["d0"])
    assert setting.store.load("d0") is None


@pytest.mark.parametrize("method", [FedAlt, FedSim])
def test_a_loss_that_becomes_nan_is_the_devices_failure(method: Any) -> None:
    devices = affine_devices()
    inputs, targets = devices["d0"]["train"]
    devices["d0"]["train"] = inputs, targets.clone().fill_(float("nan"))
    setting = Setting(affine_task(devices=devices), method(shared_lr=0.1, batch_size=4), personal="offset")

    answer = setting.visitor(setting.order(UPDATE))

    assert isinstance(answer, Failure)
    assert answer.device == "d0"
    assert "loss became nan" in answer.reason
    setting.store.commit("personalized-0", ["d0"], ["d0"])
    assert setting.store.load("d0") is None


def test_a_last_step_that_overflows_is_a_failure_too() -> None:
    method = FedAlt(shared_lr=3e38, batch_size=100)
    setting = Setting(affine_task(), method, personal="offset")

    answer = setting.visitor(setting.order(method.update))

    assert isinstance(answer, Failure)
    assert "not finite" in answer.reason or "became" in answer.reason


def test_a_device_without_training_examples_fails() -> None:
    devices = affine_devices()
    del devices["d0"]["train"]
    setting = Setting(affine_task(devices=devices), personal="offset")

    answer = setting.visitor(setting.order(UPDATE))

    assert answer == Failure(device="d0", reason="The device has no training examples.")


def test_a_loss_of_an_own_method_that_is_not_finite_is_a_failure() -> None:
    def local(**_: Any) -> Any:
        return lambda model, partition, batches, loss: [1.0, float("nan")]

    setting = Setting(affine_task(), Method(local=local), personal="offset")

    answer = setting.visitor(setting.order(UPDATE))

    assert answer == Failure(device="d0", reason="The loss became nan in step 2.")


def test_an_error_in_the_users_code_is_raised_with_the_device() -> None:
    def broken(model: nn.Module, batch: Any) -> Tensor:
        raise KeyError("weights")

    setting = Setting(affine_task(loss=broken), personal="offset")

    with pytest.raises(KeyError) as caught:
        setting.visit(UPDATE, "d3", round=7)

    (note,) = caught.value.__notes__
    assert note.startswith("On device 'd3', in round 7 of `personalized` (test_visit.py, line ")


def test_code_of_the_user_that_exits_is_an_error_and_does_not_end_the_run_in_silence() -> None:
    def leaving(model: nn.Module, batch: Any) -> Tensor:
        sys.exit(0)

    setting = Setting(affine_task(loss=leaving), personal="offset")

    with pytest.raises(RuntimeError, match=re.escape("called `sys.exit(0)`")) as caught:
        setting.visit(UPDATE, "d3", round=7)

    (note,) = caught.value.__notes__
    assert note.startswith("On device 'd3', in round 7 of `personalized` (test_visit.py, line ")


def skipping(task: Task) -> Setting:
    setting = Setting(task, personal="offset")
    computing = Computing(on_error="skip")
    setting.visitor = Visitor(task, setting.roles, setting.store, seed=1, computing=computing)
    return setting


def test_an_error_in_the_users_code_can_be_a_failure_of_the_device() -> None:
    def broken(model: nn.Module, batch: Any) -> Tensor:
        if len(batch[1]) == 1:
            raise KeyError("weights")
        return square_error(model, batch)

    setting = skipping(affine_task(loss=broken))

    failure = setting.visitor(setting.order(UPDATE, "d0"))
    reply = setting.visitor(setting.order(UPDATE, "d1"))

    assert isinstance(failure, Failure)
    assert re.fullmatch(r"KeyError: 'weights' \(test_visit\.py, line \d+\)\.", failure.reason)
    expected = Setting(affine_task(), personal="offset").visit(UPDATE, "d1")
    assert isinstance(reply, Reply)
    assert same_bits(reply.change or {}, expected.change or {})


def test_the_line_is_the_users_own_where_a_library_raises() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return json.loads("{")

    def wide(model: nn.Module, batch: Any) -> Tensor:
        return model(torch.ones(2, 7)).mean()

    reasons = []
    for each in (loss, wide):
        setting = skipping(affine_task(loss=each))
        answer = setting.visitor(setting.order(UPDATE))
        assert isinstance(answer, Failure)
        reasons.append(answer.reason)

    assert reasons[0].startswith("JSONDecodeError: ")
    assert reasons[0].endswith(f"(test_visit.py, line {loss.__code__.co_firstlineno + 1}).")
    # torch raises in the first line of the model's own forward pass.
    assert reasons[1].startswith("RuntimeError: mat1 and mat2")
    assert reasons[1].endswith(f"(small.py, line {Affine.forward.__code__.co_firstlineno + 1}).")


def test_an_error_of_the_storage_or_of_the_request_is_never_a_failure_of_the_device() -> None:
    def full(params: Any) -> None:
        raise OSError(28, "No space left on device")

    setting = skipping(affine_task())

    with pytest.raises(ValueError, match="frozen part of this device's model differs"):
        setting.visitor(setting.order(UPDATE, start=replace(setting.start, frozen="0" * 64)))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("partita.device.store.cloned", full)
        with pytest.raises(OSError, match="No space left"):
            setting.visitor(setting.order(UPDATE))


def test_a_frozen_part_that_is_not_the_servers_is_refused() -> None:
    setting = Setting(affine_task(model=Normed), personal="head.*", frozen="body.0.*")
    other = Start(digest=setting.start.digest, personal=setting.start.personal, frozen="0" * 64)

    with pytest.raises(ValueError, match="frozen part of this device's model differs from the server's"):
        setting.visitor(setting.order(UPDATE, start=other))


def test_the_start_need_not_be_sent_twice() -> None:
    setting = Setting(affine_task(), personal="offset")
    first = setting.visit(UPDATE)

    known = Start(digest=setting.start.digest, personal=None, frozen=setting.start.frozen)
    again = setting.visit(UPDATE, start=known)

    assert same_bits(first.change or {}, again.change or {})


def test_the_global_model_is_evaluated_with_the_start() -> None:
    setting = Setting(affine_task(), personal="offset")
    before = setting.visit(Evaluate(model="personal"))
    setting.visit(FINETUNE)
    setting.filed()

    assert setting.visit(Evaluate(model="global")).metrics == before.metrics
    assert setting.visit(Evaluate(model="personal")).metrics != before.metrics


def test_a_split_that_a_device_lacks_is_not_measured() -> None:
    devices = affine_devices()
    del devices["d0"]["test"]
    setting = Setting(affine_task(devices=devices), personal="offset")

    assert list(setting.visit(Evaluate(model="personal")).metrics) == ["train"]


def test_steps_count_batches_and_epochs_keep_the_short_one() -> None:
    sizes: list[int] = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        sizes.append(len(batch[0]))
        return square_error(model, batch)

    method = FedAlt(shared_lr=0.1, personal_epochs=2, shared_steps=1, batch_size=2)
    Setting(affine_task(loss=loss), method, personal="offset").visit(method.update)

    assert sizes == [2, 2, 1, 2, 2, 1, 2]


def test_an_order_says_which_round_counted() -> None:
    setting = Setting(affine_task(), personal="offset")
    setting.visit(UPDATE, round=0)
    setting.visit(UPDATE, round=1)

    setting.visit(Evaluate(model="personal"), round=2, counted="personalized-1")

    counted = setting.store.load("d0")
    assert counted is not None
    again = Setting(affine_task(), personal="offset")
    again.visit(UPDATE, round=1)
    assert same_bits(counted, again.filed(label="personalized-1"))


class SharedFirst(LocalAlt):
    """A method of a user's: u first, then v."""

    def __call__(self, model: nn.Module, partition: Partition, batches: Any, loss: Any) -> list[float]:
        losses = descend({"shared": self.shared}, model, partition, batches, loss)
        return losses + descend({"personal": self.personal}, model, partition, batches, loss)


@pytest.mark.parametrize(
    ("local", "settings", "phases"),
    [
        (LocalAlt, {"personal_steps": 1}, [1, 3]),
        (LocalAlt, {"personal_steps": 4, "shared_epochs": 2}, [4, 6]),
        (LocalAlt, {"personal_epochs": 2, "shared_steps": 2}, [6, 2]),
        (LocalAlt, {}, [3, 3]),
        (SharedFirst, {"shared_steps": 2}, [2, 3]),
    ],
)
def test_each_phase_begins_a_pass_of_its_own(local: Any, settings: dict[str, int], phases: list[int]) -> None:
    # Device d0 has 5 examples in batches of 2. Each pass is one permutation from the visit's own generator, and a
    # phase takes the first batches of as many passes as it needs.
    generator = torch.Generator().manual_seed(derive_seed(1, "personalized", 0, "d0"))
    expected: list[list[int]] = []
    for steps in phases:
        passes = [torch.randperm(5, generator=generator).split(2) for _ in range(-(-steps // 3))]
        expected += [positions.tolist() for batches in passes for positions in batches][:steps]
    inputs = affine_devices()["d0"]["train"][0]
    seen: list[list[int]] = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append([int((inputs == row).all(1).nonzero()) for row in batch[0]])
        return square_error(model, batch)

    method = Method(local=local, batch_size=2, **settings)
    Setting(affine_task(loss=loss), method, personal="offset").visit(method.update)

    assert seen == expected


class NormedBody(Normed):
    """A BatchNorm in the shared body alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(4, 1))


def sized_task(sizes: list[int], **changes: Any) -> Task:
    """A task whose loss records the size of each batch; d0 to d5 have 5 to 10 training examples."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        sizes.append(len(batch[0]))
        return square_error(model, batch)

    return affine_task(loss=loss, **changes)


@pytest.mark.parametrize(
    ("model", "method", "expected"),
    [
        # Device d2 has 7 examples: batches of 3, 3 and 1.
        (Normed, FedAvg(batch_size=3), [3, 3]),
        (Normed, FedAvg(batch_size=3, shared_epochs=2), [3, 3, 3, 3]),
        (Normed, FedAvg(batch_size=3, shared_steps=5), [3, 3, 3, 3, 3]),
        (Normed, FedAlt(batch_size=3), [3, 3, 3, 3]),
        (Normed, FedSim(batch_size=3), [3, 3]),
        # A BatchNorm that is held still has its statistics already: only the step on u leaves a batch out.
        (NormedBody, FedAlt(batch_size=3), [3, 3, 1, 3, 3]),
        (NormedBody, FedSim(batch_size=3), [3, 3]),
        (Affine, FedAlt(batch_size=3), [3, 3, 1, 3, 3, 1]),
    ],
)
def test_a_last_batch_of_one_is_left_out_where_batch_statistics_move(
    model: Any, method: Method, expected: list[int]
) -> None:
    sizes: list[int] = []
    personal = "offset" if model is Affine else "head.*"
    setting = Setting(sized_task(sizes, model=model), method, personal=personal)

    setting.visit(method.update, "d2")

    assert sizes == expected


def test_finetuning_keeps_a_batch_of_one_where_batchnorm_is_held_still() -> None:
    kept: list[int] = []
    left_out: list[int] = []

    Setting(sized_task(kept, model=NormedBody), personal="head.*").visit(FINETUNE, "d2")
    Setting(sized_task(left_out, model=Normed), personal="head.*").visit(FINETUNE, "d2")

    assert kept == [3, 3, 1] * 2
    assert left_out == [3, 3] * 2


def test_pfedme_leaves_out_a_last_batch_of_one() -> None:
    # Two batches of 3 for w, on each of them 4 steps on theta.
    sizes: list[int] = []
    task = sized_task(sizes, model=Normed)
    method = Method(local=LocalMoreau, batch_size=3, personal_steps=4)
    claims = {"personal": "personal.*", "shared": "shared.*", "prepare": Full}
    setting = Setting(task, method, penalty=partial(proximity, strength=0.1), **claims)

    setting.visit(method.update, "d2")

    assert sizes == [3] * 2 * (4 + 1)


def test_leaving_out_a_batch_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    method = FedAlt(batch_size=3)
    setting = Setting(affine_task(model=Normed), method, personal="head.*")

    setting.visit(method.update, "d0")
    assert not caplog.messages
    for number in range(3):
        setting.visit(method.update, "d2", round=number)
        setting.visit(method.update, "d5", round=number)

    assert caplog.messages == [
        "BatchNorm cannot be trained on a batch of one example: where the last batch of a pass has one, as on "
        "device 'd2', it is left out."
    ]


@pytest.mark.parametrize(
    ("examples", "batch_size", "reason"),
    [
        (1, 3, "The device has one training example: BatchNorm needs at least 2 in a batch to train."),
        (1, 1, "The device has one training example: BatchNorm needs at least 2 in a batch to train."),
        (4, 1, "`batch_size` is 1: BatchNorm needs at least 2 in a batch to train."),
    ],
)
@pytest.mark.parametrize("pace", [{}, {"shared_steps": 2}, {"shared_epochs": 3}])
def test_a_device_that_only_has_batches_of_one_fails_with_that_reason(
    examples: int, batch_size: int, reason: str, pace: dict[str, int]
) -> None:
    devices = affine_devices()
    devices["d0"]["train"] = tuple(field[:examples] for field in devices["d0"]["train"])
    method = FedAvg(batch_size=batch_size, **pace)
    setting = Setting(affine_task(model=Normed, devices=devices), method)

    answer = setting.visitor(setting.order(method.update))

    assert answer == Failure(device="d0", reason=reason)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False)])
def test_only_a_batchnorm_that_normalizes_by_the_batch_uses_its_statistics(layer: nn.BatchNorm1d) -> None:
    assert uses_batch_statistics(nn.Sequential(nn.Linear(3, 3), layer))
    assert uses_batch_statistics(layer.eval()) == (layer.running_mean is None)
    assert not uses_batch_statistics(nn.Sequential(nn.GroupNorm(1, 3), nn.InstanceNorm1d(3), nn.LayerNorm(3)))


@pytest.mark.parametrize("work", [UPDATE, FINETUNE])
def test_a_personal_part_whose_shape_the_loss_has_changed_is_refused_and_not_stored(work: Any) -> None:
    def loss(model: Affine, batch: tuple[Tensor, Tensor]) -> Tensor:
        value = square_error(model, batch)
        model.offset.data = model.offset.data.reshape(1, 1)
        return value.detach().requires_grad_()

    setting = Setting(affine_task(loss=loss), personal="offset")

    with pytest.raises(ConfigError, match=r"Device 'd1' cannot keep `offset` with the shape \(1, 1\)"):
        setting.visitor(setting.order(work, "d1"))

    setting.store.commit(setting.order(work, "d1").label, ["d1"], ["d1"])
    assert setting.store.load("d1") is None
