"""FedSim: devices update both parts in every step, from gradients at the same point.

Federated Learning with Partial Model Personalization
    K. Pillutla, K. Malik, A. Mohamed, M. Rabbat, M. Sanjabi, L. Xiao. ICML 2022.
    https://arxiv.org/abs/2204.03809
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from partita.methods.declared import LocalFn
from partita.methods.descent import Batch, LossFn, Steps, descend
from partita.methods.fedalt import PAPER
from partita.methods.method import Method
from partita.methods.named import NamedMethod
from partita.partition import Partition


@dataclass(frozen=True, kw_only=True)
class LocalSim:
    """Update u and v together, as many steps each."""

    personal: Steps
    """Steps on v, the personal part."""
    shared: Steps
    """Steps on u, the shared part."""

    def __post_init__(self) -> None:
        if self.personal.count != self.shared.count:
            raise ValueError(
                "A simultaneous update takes as many steps on the personal part as on the shared part, "
                f"got {self.personal.count} and {self.shared.count}."
            )

    def __call__(
        self,
        model: nn.Module,
        partition: Partition,
        batches: Iterable[Batch],
        loss: LossFn,
    ) -> list[float]:
        """Train the model in place and return the loss of every step."""
        return descend({"personal": self.personal, "shared": self.shared}, model, partition, batches, loss)


@dataclass(frozen=True, kw_only=True)
class FedSim(Method):
    """Devices update both parts in every step. Takes the settings of `Method`."""

    local: LocalFn = LocalSim
    """LocalSim: both gradients at the same point."""


METHOD = NamedMethod(
    title="FedSim",
    update=LocalSim,
    citation=PAPER,
    compared_by_default=True,
    in_partial_table=True,
    order=25,
)
