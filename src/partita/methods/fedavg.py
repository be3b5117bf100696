"""FedAvg: devices update the shared part alone; without a personal part, all of the model.

Communication-Efficient Learning of Deep Networks from Decentralized Data
    H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. AISTATS 2017.
    https://arxiv.org/abs/1602.05629
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from partita.methods.declared import LocalFn
from partita.methods.descent import Batch, LossFn, Phases, Steps, descend
from partita.methods.method import Method
from partita.methods.named import SHARED_RATE, Citation, NamedMethod
from partita.partition import Partition


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """Update u; a personal part, where there is one, does not move."""

    phases: ClassVar[Phases] = (("shared",),)

    personal: Steps
    """Not used: every update is given steps for both parts."""
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
        return descend({"shared": self.shared}, model, partition, batches, loss)


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """All devices train one model; with a partition, its shared part. Takes the settings of `Method`."""

    local: LocalFn = LocalSGD
    """LocalSGD: steps on the shared part alone."""
    personal_epochs: int = 0
    """None: the personal part does not move."""


NO_PERSONAL_STEPS = {"personalize.personal_epochs": 0, "personalize.personal_steps": 0}
"""The settings of a method whose devices do not move a personal part in training rounds."""

METHOD = NamedMethod(
    title="FedAvg, continued",
    update=LocalSGD,
    citation=Citation(
        key="mcmahan2017",
        title="Communication-Efficient Learning of Deep Networks from Decentralized Data",
        authors="Brendan McMahan and Eider Moore and Daniel Ramage and Seth Hampson and "
        'Blaise {Ag{\\"u}era y Arcas}',
        venue="International Conference on Artificial Intelligence and Statistics",
        year=2017,
        arxiv="1602.05629",
    ),
    personal="none",
    fixed=NO_PERSONAL_STEPS,
    rates=(SHARED_RATE,),
    always_compared=True,
    order=11,
)
