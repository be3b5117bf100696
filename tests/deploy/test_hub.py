"""What a device learns of its rounds from the hub decides which of its personal parts stands."""

from collections.abc import Callable

import pytest
import torch

from partita.deploy.hub import Hub
from partita.executors.desk import Desk, Post
from partita.protocol import Evaluate, Order, Stage, Start

LABEL = "finetuned-1"


def open_next(hub: Hub) -> None:
    start = Start(digest="0" * 64, personal=None, frozen="0" * 64)
    order = Order(
        stage=Stage.FINETUNED,
        round=2,
        device="ann",
        work=Evaluate(model="personal", splits=("test",)),
        shared={"u": torch.zeros(2)},
        start=start,
    )
    hub.desk.open([order], [], cohort=1)


def end_run(hub: Hub) -> None:
    hub.finish(["ann"])


@pytest.mark.parametrize(("follows", "kind"), [(open_next, "order"), (end_run, "done")])
def test_a_device_learns_of_a_round_that_ends_while_it_asks(
    monkeypatch: pytest.MonkeyPatch, follows: Callable[[Hub], None], kind: str
) -> None:
    hub = Hub("run", {}, Desk())
    find = hub.desk.find

    def end_round_and_find(device: str) -> Post | None:
        # The training loop, in its own thread, commits the round in which the device was counted, and goes on.
        hub.desk.settle(LABEL, [device])
        follows(hub)
        return find(device)

    monkeypatch.setattr(hub.desk, "find", end_round_and_find)
    message = hub.message("ann")

    # With an older answer, the device would take its new personal part for one of a lost round, and drop it.
    assert message["kind"] == kind
    assert message["counted"] == LABEL
