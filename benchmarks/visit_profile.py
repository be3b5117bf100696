"""Where the time of a visit goes: a round of FedAvg, each step of a visit as a share of the round.

    python benchmarks/visit_profile.py

50 devices with one batch of 10 examples each, one thread; of several rounds the fastest. Each figure has the
time that it takes to measure it, about half a microsecond.
"""

import importlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from partita import Averaging, FedAvg, Partition, Personalization, Stage, Task, accuracy
from partita.device.roles import Role
from partita.device.store import MemoryStore
from partita.executors.serial import SerialExecutor
from partita.mean import WeightedMean
from partita.params import cloned, digest_of
from partita.protocol import Order, Start
from partita.server.round import Server, ask

DEVICES, EXAMPLES = 50, 10
STEPS = {
    "seeds": "partita.device.visit:seed_everything",
    "load u and v": "partita.device.loading:Loader.load",
    "examples and batches": "partita.device.visit:Visitor._training, partita.device.visit:Visitor._batches",
    "forward pass": f"{__name__}:cross_entropy",
    "backward pass and step": "partita.methods.descent:_step",
    "change of u and exact mean": "partita.mean:WeightedMean.add_after",
}
spent: dict[str, float] = {}


def linear() -> nn.Module:
    """Return 7,850 parameters: a visit is almost all overhead."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def network() -> nn.Module:
    """Return a convolutional network of 1.6 million parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(3136, 496), nn.ReLU(), nn.Linear(496, 10)),
    )


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean loss of a batch."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def place_of(path: str) -> tuple[Any, str]:
    """Return the module or class that a function is in, and its name there."""
    module, _, names = path.strip().partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = names.split(".")
    for attribute in outer:
        owner = getattr(owner, attribute)
    return owner, name


def timed(step: str, path: str) -> None:
    """Replace a function by one that adds the time of its calls to those of a step."""
    owner, name = place_of(path)
    function = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        begin = time.thread_time()
        try:
            return function(*arguments, **options)
        finally:
            spent[step] = spent.get(step, 0.0) + time.thread_time() - begin

    setattr(owner, name, call)


def round_of(model: Callable[[], nn.Module]) -> Callable[[], None]:
    """Return a function that runs a round."""
    generator = torch.Generator().manual_seed(0)
    devices = {
        f"d{number:02}": {
            "train": (
                torch.randn(EXAMPLES, 1, 28, 28, generator=generator),
                torch.randint(10, (EXAMPLES,), generator=generator),
            )
        }
        for number in range(DEVICES)
    }
    task = Task(model=model, loss=cross_entropy, metrics={"accuracy": accuracy}, devices=devices)
    partition, method = Partition(model()), FedAvg(shared_lr=0.1, batch_size=EXAMPLES)
    role = Role(personalization=Personalization(partition), method=method)
    executor = SerialExecutor(task, {Stage.PRETRAINED: role}, MemoryStore(), seed=1)
    server, empty = Server(optimizer=Averaging()), digest_of({})
    start = Start(digest=empty, personal={}, frozen=empty)
    state = server.begin(cloned(partition.of(model()).shared))
    common = {"stage": Stage.PRETRAINED, "round": 0, "work": method.update, "start": start}

    def run() -> None:
        nonlocal state
        mean = WeightedMean(state.shared)
        ask([Order(device=device, shared=state.shared, **common) for device in devices], executor, mean)
        state = server.step(state, mean.value())

    return run


def fastest(run: Callable[[], None], rounds: int) -> dict[str, float]:
    """Return the seconds of each step in the fastest of some rounds, and of the whole round."""
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        spent.clear()
        begin = time.thread_time()
        run()
        found.append({**spent, "all": time.thread_time() - begin})
    return min(found, key=lambda times: times["all"])


def main() -> None:
    """Print a table for a small and a larger model."""
    torch.set_num_threads(1)
    for step, paths in STEPS.items():
        for path in paths.split(","):
            timed(step, path)
    for name, model, rounds in (("linear", linear, 60), ("convolutional", network, 12)):
        times = fastest(round_of(model), rounds)
        total = times.pop("all")
        print(f"{name}: {1e6 * total / DEVICES:.0f} microseconds a visit")
        for step, seconds in {**times, "all else": total - sum(times.values())}.items():
            print(f"  {step:<28} {100 * seconds / total:5.1f} %")


if __name__ == "__main__":
    main()
