"""Computing once what does not move: the same bits as without, applied where it can be, off where it cannot."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita.device import reuse_plan
from partita.device.roles import Role
from partita.device.settings import Computing
from partita.device.store import MemoryStore
from partita.device.visit import Visitor
from partita.methods.fedalt import LocalAlt
from partita.methods.method import Finetuning, Method
from partita.params import cloned, digest_of
from partita.partition import Partition, Personalization
from partita.protocol import Finetune, Order, Pace, Reply, Stage, Start, Update
from partita.tasks.build import build_model
from partita.tasks.task import Task
from reuse_traps import HOARD, ROWS, TRAPS, Net, Trap

SIZE, BATCH, EPOCHS = 20, 8, 3
"""Batches of 8, 8 and 4 examples."""
FINETUNE = Finetune(personal=Pace(lr=0.1, epochs=EPOCHS))
UPDATE = Update(personal=Pace(lr=0.1, epochs=EPOCHS), shared=Pace(lr=0.1, epochs=2))


@pytest.fixture(autouse=True)
def _small_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let small models count as large, and count anew."""
    monkeypatch.setattr(reuse_plan, "MIN_OPERATIONS", 0)
    ROWS.clear()
    HOARD.clear()
    yield
    ROWS.clear()
    HOARD.clear()


def data(size: int = SIZE, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=draw), torch.randint(3, (size,), generator=draw)


@dataclass
class Stand:
    """A visitor of one task, with or without reuse."""

    trap: Trap
    reuse: bool = True
    sizes: dict[str, int] = field(default_factory=lambda: {"a": SIZE, "b": SIZE})
    method: Method = field(
        default_factory=lambda: Method(
            local=LocalAlt, batch_size=BATCH, personal_epochs=EPOCHS, shared_epochs=2, shared_lr=0.1
        )
    )
    own: Personalization | None = None

    def __post_init__(self) -> None:
        devices = {name: {"train": data(size, seed)} for seed, (name, size) in enumerate(self.sizes.items())}
        metrics = {"zero": lambda predicted, targets: 0.0}
        task = Task(model=self.trap.model, loss=self.trap.loss, metrics=metrics, devices=devices)
        own = self.own or Personalization(Partition(task.model(), **self.trap.partition))
        finetuning = Finetuning(batch_size=self.method.batch_size, epochs=EPOCHS)
        role = Role(personalization=own, method=self.method, finetuning=finetuning)
        self.store = MemoryStore()
        computing = Computing(reuse=self.reuse)
        self.visitor = Visitor(task, dict.fromkeys(Stage, role), self.store, seed=1, computing=computing)
        self.parts = own.partition.of(build_model(task, own, seed=1))
        frozen = digest_of(self.parts.frozen)
        self.start = Start(digest="start", personal=cloned(self.parts.personal), frozen=frozen)

    def visit(self, work: Any = FINETUNE, *, device: str = "a", number: int = 0) -> list[Tensor]:
        """Visit a device and return its losses, its new personal part and its change."""
        order = Order(
            device=device,
            stage=Stage.PERSONALIZED,
            round=number,
            work=work,
            shared=cloned(self.parts.shared),
            start=self.start,
        )
        reply = self.visitor(order)
        assert isinstance(reply, Reply), reply
        self.store.commit(order.label, [device], [device])
        measures = [torch.tensor(value or 0, dtype=torch.double) for value in reply.metrics["train"].values()]
        personal = self.store.load(device) or {}
        return [*measures, *personal.values(), *(reply.change or {}).values()]

    def rows(self, work: Any = FINETUNE, *, device: str = "a", number: int = 0) -> int:
        """Visit a device and return how many rows the stem has computed."""
        ROWS.clear()
        self.visit(work, device=device, number=number)
        return sum(ROWS)


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


@pytest.mark.parametrize("name", TRAPS)
def test_a_visit_has_the_same_bits_with_reuse(name: str) -> None:
    for work in (FINETUNE, UPDATE):
        found: list[list[Tensor]] = []
        for reuse in (True, False):
            HOARD.clear()
            stand = Stand(TRAPS[name], reuse=reuse)
            found.append(stand.visit(work, device="a") + stand.visit(work, device="b"))
        assert same(*found)


@pytest.mark.parametrize("name", TRAPS)
def test_reuse_applies_where_it_can(name: str) -> None:
    trap = TRAPS[name]
    on, off = Stand(trap), Stand(trap, reuse=False)
    on.visit()
    off.visit()

    with_reuse, without = on.rows(), off.rows()

    if trap.applies:
        assert with_reuse <= without - (EPOCHS - 1) * SIZE
    elif trap.applies is False:
        assert with_reuse >= without
