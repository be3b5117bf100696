"""Tensors that an update keeps on a device and sends besides the shared part."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita import (
    Carried,
    LocalAlt,
    Method,
    Partition,
    Result,
    Sent,
    Steps,
    descend,
    mean_over_all_devices,
    mean_over_replies,
    run,
)
from partita.methods.carried import carries, kept_by, make_update, sent_by
from partita.params import Params
from small import Affine, Normed, affine_task

STEPS = Steps(count=1, lr=0.1)


@dataclass(frozen=True, kw_only=True)
class Counting:
    """Counts a device's visits on the device, and tells the server of each visit."""

    personal: Steps
    shared: Steps
    carried: Carried
    step: float = 1.0

    @staticmethod
    def keeps(shared: Params, personal: Params) -> Params:
        kept = {f"visits/{name}": torch.zeros_like(tensor) for name, tensor in personal.items()}
        return kept | {"seen": torch.tensor(0)}

    @staticmethod
    def sends(shared: Params) -> dict[str, Sent]:
        return {
            "mean": Sent(torch.zeros(len(shared))),
            "all": Sent(torch.zeros(len(shared)), mean_over_all_devices),
        }

    def __call__(
        self, model: nn.Module, partition: Partition, batches: Iterable[Any], loss: Any
    ) -> list[float]:
        for tensor in (*self.carried.kept.values(), *self.carried.sent.values()):
            tensor.add_(self.step if tensor.is_floating_point() else 1)
        return descend({"shared": self.shared}, model, partition, batches, loss)


def train(local: Any, **settings: Any) -> Result:
    """Three rounds in which all six devices take part."""
    task = affine_task()
    method = Method(local=local, shared_lr=0.1, **settings)
    partition = Partition(task.model(), personal="offset")
    return run(task, partition, method, rounds=3, devices_per_round=6)


def kept(result: Result, device: str) -> dict[str, Tensor]:
    return result._models.record.kept(device) or {}


def test_kept_tensors_may_depend_on_the_personal_part() -> None:
    result = train(Counting)

    for device in affine_task().devices:
        assert kept(result, device)["visits/offset"].tolist() == [3.0]
        assert kept(result, device)["seen"].item() == 3
        assert set(result.personal(device)) == {"offset"}


def test_a_stateless_device_keeps_nothing() -> None:
    result = train(Counting, stateful=False)

    assert not any(kept(result, device) for device in affine_task().devices)


def test_a_setting_of_the_update_is_bound_to_it() -> None:
    result = train(partial(Counting, step=0.5))

    assert kept(result, "d0")["visits/offset"].tolist() == [1.5]


def test_sent_tensors_are_declared_for_the_shared_part_alone() -> None:
    model = Normed()
    partition = Partition(model, personal="head.*")
    parts = partition.of(model)

    sent = sent_by(Counting, partition, parts.shared)

    # Of the shared part, a weight and a bias of two layers train; statistics have no gradient.
    assert {name: len(each.tensor) for name, each in sent.items()} == {"mean": 4, "all": 4}
    assert sent["mean"].aggregation is mean_over_replies
    trained = {name for name in parts.personal if "running" not in name and "num_batches" not in name}
    assert set(kept_by(Counting, partition, parts)) == {f"visits/{name}" for name in trained} | {"seen"}


def test_the_two_rules_of_aggregation() -> None:
    # 3 of 12 devices replied.
    assert mean_over_replies(3, 12) == 1.0
    assert mean_over_all_devices(3, 12) == 0.25


def test_an_update_that_declares_nothing_is_created_from_its_steps() -> None:
    partition = Partition(Affine(), personal="offset")
    parts = partition.of(Affine())
    carried = Carried(kept={}, sent={})

    assert not carries(LocalAlt)
    assert not carries(partial(LocalAlt))
    assert carries(partial(Counting, step=0.5))
    assert kept_by(LocalAlt, partition, parts) == sent_by(LocalAlt, partition, parts.shared) == {}
    assert make_update(LocalAlt, personal=STEPS, shared=STEPS, carried=carried) == LocalAlt(
        personal=STEPS, shared=STEPS
    )


class WholeNumbers(Counting):
    @staticmethod
    def sends(shared: Params) -> dict[str, Sent]:
        return {"count": Sent(torch.tensor(0))}


def test_only_floating_point_tensors_are_sent() -> None:
    with pytest.raises(ValueError, match="floating-point tensors, got 'count' of torch.int64."):
        train(WholeNumbers)


def test_kept_tensors_are_in_the_file_of_the_device(tmp_path: Path) -> None:
    task = affine_task()
    partition = Partition(task.model(), personal="offset")
    method = Method(local=Counting, shared_lr=0.1)

    run(task, partition, method, rounds=1, devices_per_round=6, out=tmp_path / "run")
    again = run(task, partition, method, rounds=1, devices_per_round=6, out=tmp_path / "run", resume=True)

    assert kept(again, "d2")["visits/offset"].tolist() == [1.0]
