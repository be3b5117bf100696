"""LocalAlt, the device's half of FedAlt: first the personal part, then the shared one.

Federated Learning with Partial Model Personalization
    K. Pillutla, K. Malik, A. Mohamed, M. Rabbat, M. Sanjabi, L. Xiao. ICML 2022.
    https://arxiv.org/abs/2204.03809
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from partita.methods.descent import Batch, LossFn, Steps, descend
from partita.partition import Partition


@dataclass(frozen=True, kw_only=True)
class LocalAlt:
    """Update v with u held still, then u with the new v held still."""

    personal: Steps
    """Steps on v, the personal part."""
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
        losses = descend({"personal": self.personal}, model, partition, batches, loss)
        return losses + descend({"shared": self.shared}, model, partition, batches, loss)
