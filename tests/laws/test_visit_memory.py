"""The memory of a visit, counted by its live tensors, against the prediction."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from partita import Devices, FedAlt, FedSim, Partition, Stage, Task, accuracy, full
from partita.device.roles import Role
from partita.device.store import MemoryStore
from partita.device.visit import Visitor
from partita.methods.method import Method
from partita.params import cloned, digest_of, size_in_bytes
from partita.partition import Personalization
from partita.protocol import Order, Start
from partita.tasks.build import build_model
from partita.training.costs import cost_model_of
from partita.training.visit_memory import visit_of_one_example


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that are made in its block and still alive, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        before = {
            each.untyped_storage().data_ptr() for each in tree_leaves((args, kwargs)) if _is_tensor(each)
        }
        for tensor in filter(_is_tensor, tree_leaves(found)):
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if storage.nbytes() and address not in before and address not in self._known:
                self._add(storage, address)
        return found

    def _add(self, storage: torch.UntypedStorage, address: int) -> None:
        self._known.add(address)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, address, storage.nbytes())

    def _drop(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.now -= size


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(40, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10))


def loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def personalizations() -> dict[str, Personalization]:
    head = Personalization(Partition(net(), personal="4.*"))
    body = Personalization(Partition(net(), personal=["0.*", "2.*"]))
    return {"head": head, "body": body, "full": full(net())}


@pytest.mark.parametrize("method", [FedAlt(batch_size=1), FedSim(batch_size=1)])
@pytest.mark.parametrize("name", personalizations())
def test_live_tensors_of_a_visit_are_as_predicted(name: str, method: Method) -> None:
    data = {"train": (torch.ones(1, 40), torch.tensor([3]))}
    task = Task(model=net, loss=loss, metrics={"accuracy": accuracy}, devices=Devices(["a"], lambda _: data))
    own = personalizations()[name]
    parts = own.partition.of(build_model(task, own, seed=1))
    predicted = visit_of_one_example(cost_model_of(task, seed=1), own, method.local)["visit_bytes"]
    start = Start(digest=digest_of(parts.personal), personal=parts.personal, frozen=digest_of(parts.frozen))
    visitor = Visitor(
        task, {Stage.PERSONALIZED: Role(personalization=own, method=method)}, MemoryStore(), seed=1
    )

    def visit(shared: Any) -> None:
        order = Order(
            stage=Stage.PERSONALIZED, round=0, device="a", work=method.update, shared=shared, start=start
        )
        visitor(order)

    visit(parts.shared)  # It builds the model.
    with LiveBytes() as live:
        visit(cloned(parts.shared))

    share = live.peak / (predicted - sum(map(size_in_bytes, (parts.shared, parts.personal, parts.frozen))))
    # Of `body`, the largest is writing v: what is written is no tensor.
    assert (0.0 if name == "body" else 0.85) < share < 1.02
