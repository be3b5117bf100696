"""Your own model and data, in memory: each device gets its own output layer.

Run it with `python examples/own_model.py`; it takes a few seconds.
"""

import torch
from torch import Tensor, nn

import partita


def make_model() -> nn.Module:
    """Return a small network; "2.*" are the names of its output layer."""
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def make_data(number: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return 40 examples; which feature decides the label differs between devices."""
    inputs = torch.randn(40, 8, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs[:, number % 8] > 0).long()


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean loss of a batch."""
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def make_task() -> partita.Task:
    """Return 20 devices with their data, the model, the loss and a metric."""
    devices = {
        f"device-{n}": {"train": make_data(n, seed=n), "test": make_data(n, seed=100 + n)} for n in range(20)
    }
    return partita.Task(model=make_model, loss=loss, metrics={"accuracy": partita.accuracy}, devices=devices)


def main() -> None:
    """Train with FedAvg and with FedAlt, and print the test accuracy of both."""
    task = make_task()
    partition = partita.Partition(make_model(), personal="2.*")

    for method in (partita.FedAvg(shared_lr=0.5), partita.FedAlt(shared_lr=0.5, personal_lr=0.5)):
        result = partita.run(task, partition, method, rounds=20)
        accuracy = result.summary["stages"]["personalized"]["weighted_mean"]
        print(f"{type(method).__name__}: test accuracy {accuracy:.2f}")

    model = result.model("device-3")
    inputs, labels = make_data(3, seed=103)
    print(f"device-3 predicts {model(inputs[:8]).argmax(dim=1).tolist()}, labels {labels[:8].tolist()}")


if __name__ == "__main__":
    main()
