"""LocalSGD, the device's half of FedAvg: steps on the shared part alone.

Communication-Efficient Learning of Deep Networks from Decentralized Data
    H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. AISTATS 2017.
    https://arxiv.org/abs/1602.05629
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from partita.methods.descent import Batch, LossFn, Steps, descend
from partita.partition import Partition


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """Update u; a personal part, where there is one, stays as it is."""

    personal: Steps
    """Not taken: every update is given steps for both parts."""
    shared: Steps
    """Steps on u, the shared part."""

    def __call__(
        self,
        model: nn.Module,
        partition: Partition,
        batches: Iterator[Batch],
        loss: LossFn,
    ) -> list[float]:
        """Train the model in place and return the loss of every step."""
        return descend({"shared": self.shared}, model, partition, batches, loss)
