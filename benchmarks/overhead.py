"""What the library costs: a round of FedAvg against the same round as a plain loop, in one run.

The two take turns on the same data, so that whatever else the machine does hits both; the figure is the
ratio of their medians. Run it with `make bench`.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from partita import Averaging, FedAvg, Partition, Personalization, Stage, Task, accuracy
from partita.device.roles import Role
from partita.device.store import MemoryStore
from partita.executors.serial import SerialExecutor
from partita.params import WeightedMean, cloned, digest_of
from partita.protocol import Order, Start
from partita.server.round import Server, ask

DEVICES, EXAMPLES, LR, ROUNDS = 50, 10, 0.1, 15


def linear() -> nn.Module:
    """Return 7,850 parameters: what is measured is almost all overhead."""
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


def plain_round(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> Callable[[], None]:
    """Return a round with nothing but the arithmetic: copy u, step, add up the changes."""
    now = list(model.parameters())
    shared = [parameter.detach().clone() for parameter in now]

    def run() -> None:
        total = [torch.zeros_like(u) for u in shared]
        with torch.no_grad():
            for batch in data:
                for parameter, u in zip(now, shared, strict=True):
                    parameter.copy_(u)
                with torch.enable_grad():
                    gradients = torch.autograd.grad(cross_entropy(model, batch), now)
                for parameter, gradient in zip(now, gradients, strict=True):
                    parameter.add_(gradient, alpha=-LR)
                for sums, parameter, u in zip(total, now, shared, strict=True):
                    sums.add_(parameter - u, alpha=EXAMPLES)
            for u, sums in zip(shared, total, strict=True):
                u.add_(sums / (EXAMPLES * len(data)))

    return run


def library_round(model: Callable[[], nn.Module], data: list[tuple[Tensor, Tensor]]) -> Callable[[], None]:
    """Return the same round as the library runs it."""
    devices = {f"d{number:02}": {"train": batch} for number, batch in enumerate(data)}
    task = Task(model=model, loss=cross_entropy, metrics={"accuracy": accuracy}, devices=devices)
    partition = Partition(model())
    method = FedAvg(shared_lr=LR, batch_size=EXAMPLES)
    role = Role(personalization=Personalization(partition), method=method)
    executor = SerialExecutor(task, {Stage.PRETRAINED: role}, MemoryStore(), seed=1)
    server = Server(optimizer=Averaging())
    start = Start(digest=digest_of({}), personal={}, frozen=digest_of({}))
    state = server.begin(cloned(partition.of(model()).shared))

    def run() -> None:
        nonlocal state
        orders = [
            Order(
                stage=Stage.PRETRAINED,
                round=0,
                device=device,
                work=method.update,
                shared=state.shared,
                start=start,
            )
            for device in devices
        ]
        mean = WeightedMean(state.shared)
        ask(orders, executor, mean)
        state = server.step(state, mean.value())

    return run


def seconds(function: Callable[[], None]) -> float:
    """Return how long a call takes."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def main() -> None:
    """Print the ratio for a small and a larger model, and what the exact mean costs."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    data = [
        (
            torch.randn(EXAMPLES, 1, 28, 28, generator=generator),
            torch.randint(10, (EXAMPLES,), generator=generator),
        )
        for _ in range(DEVICES)
    ]
    for name, model in (("linear, 7,850 parameters", linear), ("convolutional, 1.6M parameters", network)):
        plain, library = plain_round(model(), data), library_round(model, data)
        times = [(seconds(plain), seconds(library)) for _ in range(ROUNDS)][1:]
        alone, ours = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{name}: plain loop {alone:.3f} s a round, Partita {ours:.3f} s, ratio {ours / alone:.2f}")

    change = {"u": torch.randn(1_600_000, generator=generator)}
    mean = WeightedMean(change)
    times = [seconds(lambda: mean.add("d", change, 3)) for _ in range(20)]
    print(f"exact mean: {1000 * statistics.median(times):.1f} ms to count a change of 1.6M values")


if __name__ == "__main__":
    main()
