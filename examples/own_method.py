"""Your own method: an update in a few lines, run and compared with FedAlt.

Run it with `python examples/own_method.py`; it takes a few seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

import fedalt_in_one_file as curves
import partita


@dataclass(frozen=True, kw_only=True)
class SharedFirst:
    """FedAlt in the opposite order: update u with v fixed, then v with the new u fixed."""

    personal: partita.Steps
    shared: partita.Steps

    def __call__(
        self, model: nn.Module, partition: partita.Partition, batches: Iterable[Any], loss: Any
    ) -> list[float]:
        """Train the model in place and return the loss of every step."""
        losses = partita.descend({"shared": self.shared}, model, partition, batches, loss)
        return losses + partita.descend({"personal": self.personal}, model, partition, batches, loss)


def make_task() -> partita.Task:
    """Return noisy measurements of a curve; each device has its own offset and slope."""
    return partita.Task(
        model=curves.make_model,
        loss=lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        metrics={"error": partita.Metric(lambda y, t: nn.functional.mse_loss(y, t).item(), "down")},
        devices={name: {"train": data, "test": data} for name, data in curves.make_devices().items()},
    )


def main() -> None:
    """Train with both methods and print the mean squared error of each."""
    task = make_task()
    partition = partita.Partition(task.model(), personal="4.*")

    for update in (partita.LocalAlt, SharedFirst):
        method = partita.Method(local=update, shared_lr=0.05, personal_lr=0.05, batch_size=8)
        result = partita.run(task, partition, method, rounds=20, devices_per_round=4)
        error = result.summary["stages"]["personalized"]["weighted_mean"]
        print(f"{update.__name__}: mean squared error {error:.3f}")


if __name__ == "__main__":
    main()
