"""All devices in this process, one after the other."""

import weakref
from typing import Any

import pytest

from partita import FedAvg, Partition, Plan, Training
from partita.device.store import MemoryStore
from partita.mean import WeightedMean
from partita.params import digest_of
from partita.partition import personalization_of
from partita.protocol import Order, Stage, Start, Tally
from partita.studies.local import local_executor
from small import affine_task

METHOD = FedAvg(shared_lr=0.1, batch_size=100)


def test_the_sums_are_in_memory_once_when_they_are_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[WeightedMean]] = []

    def watched(*given: Any) -> WeightedMean:
        mean = WeightedMean(*given)
        made.append(weakref.ref(mean))
        return mean

    monkeypatch.setattr("partita.executors.serial.WeightedMean", watched)
    task = affine_task()
    model = task.model()
    own = Partition(model, personal="offset")
    parts = own.of(model)
    start = Start(digest=digest_of(parts.personal), personal=parts.personal, frozen=digest_of({}))
    plan = Plan(personalize=Training(method=METHOD, rounds=1, devices_per_round=6))
    orders = [
        Order(
            stage=Stage.PERSONALIZED,
            round=0,
            device=device,
            work=METHOD.update,
            shared=parts.shared,
            start=start,
        )
        for device in task.devices
    ]

    with local_executor(task, personalization_of(own), plan, MemoryStore(), seed=1) as executor:
        left = [[mean() for mean in made] for answer in executor.ask(orders) if isinstance(answer, Tally)]

    assert left == [[None]]
