"""A round costs what its cohort costs, however many devices are registered."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from partita import Devices, Evaluation, FedAlt, Partition, Plan, Training, pipeline
from partita.data.arrow import Ids
from small import affine_task

MANY, COHORT, EVALUATED = 100_000, 5, 10


def ids(count: int) -> Iterator[str]:
    return (f"device-{number:06}" for number in range(count))


def run(devices: Devices, watch: Any, out: Path | None = None) -> None:
    task = affine_task(devices=devices)
    training = Training(method=FedAlt(shared_lr=0.1), rounds=6, devices_per_round=COHORT)
    plan = Plan(personalize=training, evaluate=Evaluation(devices=EVALUATED))
    pipeline(task, Partition(task.model(), personal="offset"), plan, out=out, watch=watch)


def test_a_round_looks_up_and_loads_its_cohort_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looked_up: list[int | slice] = []
    loaded: list[str] = []
    rounds: list[tuple[str, int, int, int]] = []
    look_up = Ids.__getitem__

    def counted(self: Ids, position: Any) -> Any:
        looked_up.append(position)
        return look_up(self, position)

    def load(device: str) -> dict[str, Any]:
        loaded.append(device)
        data = torch.ones(4, 3), torch.ones(4)
        return {"train": data, "test": data}

    def watch(line: Any, done: int, total: int) -> None:
        rounds.append((line["work"], len(line["asked"]), len(looked_up), len(set(loaded))))
        looked_up.clear()
        loaded.clear()

    monkeypatch.setattr(Ids, "__getitem__", counted)
    run(Devices(ids(MANY), load), watch, out=tmp_path / "run")

    updates = [found for work, *found in rounds if work == "update"]
    assert updates[1:] == [[COHORT, COHORT, COHORT]] * 5  # Before the first one, the stage begins.
    assert rounds[-1] == ("evaluate", EVALUATED, 0, EVALUATED)


@pytest.mark.slow
def test_python_keeps_no_object_for_a_registered_device() -> None:
    data = torch.ones(4, 3), torch.ones(4)

    def kept(count: int) -> int:
        sizes: list[int] = []
        tracemalloc.start()
        try:
            devices = Devices(ids(count), lambda _: {"train": data, "test": data})
            run(devices, lambda *_: sizes.append(tracemalloc.get_traced_memory()[0]))
        finally:
            tracemalloc.stop()
        return max(sizes)

    kept(10)  # Imports and caches.
    few, many = kept(10), kept(MANY)

    assert many - few < MANY  # Less than a byte each: the ids themselves are in an Arrow array.
