"""FedAlt: devices update the personal part first, then the shared one.

Federated Learning with Partial Model Personalization
    K. Pillutla, K. Malik, A. Mohamed, M. Rabbat, M. Sanjabi, L. Xiao. ICML 2022.
    https://arxiv.org/abs/2204.03809
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from partita.methods.declared import LocalFn
from partita.methods.descent import Batch, LossFn, Phases, Steps, descend
from partita.methods.method import Method
from partita.methods.named import Citation, NamedMethod
from partita.partition import Partition


@dataclass(frozen=True, kw_only=True)
class LocalAlt:
    """Update v with u held still, then u with the new v held still."""

    phases: ClassVar[Phases] = (("personal",), ("shared",))

    personal: Steps
    """Steps on v, the personal part."""
    shared: Steps
    """Steps on u, the shared part."""

    def __call__(
        self,
        model: nn.Module,
        partition: Partition,
        batches: Iterable[Batch],
        loss: LossFn,
    ) -> list[float]:
        """Train the model in place and return the loss of every step."""
        losses = descend({"personal": self.personal}, model, partition, batches, loss)
        return losses + descend({"shared": self.shared}, model, partition, batches, loss)


@dataclass(frozen=True, kw_only=True)
class FedAlt(Method):
    """Devices update the personal part first, then the shared one. Takes the settings of `Method`."""

    local: LocalFn = LocalAlt
    """LocalAlt: v with u held still, then u with the new v held still."""


PAPER = Citation(
    key="pillutla2022",
    title="Federated Learning with Partial Model Personalization",
    authors="Krishna Pillutla and Kshitiz Malik and Abdelrahman Mohamed and Michael Rabbat and "
    "Maziar Sanjabi and Lin Xiao",
    venue="International Conference on Machine Learning",
    year=2022,
    arxiv="2204.03809",
)

METHOD = NamedMethod(
    title="FedAlt",
    update=LocalAlt,
    citation=PAPER,
    compared_by_default=True,
    in_partial_table=True,
    order=24,
)
