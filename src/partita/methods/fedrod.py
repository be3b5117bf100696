"""FedRoD: a generic head trained with a balanced loss, and a head of each device's own on top of it.

On Bridging Generic and Personalized Federated Learning for Image Classification
    H.-Y. Chen, W.-L. Chao. ICLR 2022.
    https://arxiv.org/abs/2107.00778

The shared part, with the generic head, is trained with the balanced softmax loss: the logarithm of the number
of the device's examples of each class is added to the scores, so that devices with different classes have one
objective. The personal head is trained with the loss itself, on the sum of both heads' scores, and nothing
flows from it into the shared part. So the two are phases here, the shared part first; the paper's steps on
them alternate. A personal head begins at 0: the device then predicts with the generic one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from partita.errors import ConfigError
from partita.methods.declared import OwnExamples
from partita.methods.descent import Batch, LossFn, Phases, Steps, descend
from partita.methods.named import Citation, NamedMethod
from partita.models.heads import SecondHead, count_classes, without_second_head
from partita.partition import Partition

_BATCH_SIZE = 256
"""Examples whose targets are counted at a time."""


@dataclass(frozen=True, kw_only=True)
class LocalRoD:
    """Update u with the balanced loss and without the second head, then the second head with u held still."""

    phases: ClassVar[Phases] = (("shared",), ("personal",))

    personal: Steps
    """Steps on the second head."""
    shared: Steps
    """Steps on u, the shared part."""
    examples: OwnExamples
    """The examples whose classes are counted."""

    def __call__(
        self,
        model: nn.Module,
        partition: Partition,
        batches: Iterable[Batch],
        loss: LossFn,
    ) -> list[float]:
        """Train the model in place and return the loss of every step."""
        with without_second_head(model, self._prior(model)):
            losses = descend({"shared": self.shared}, model, partition, batches, loss)
        return losses + descend({"personal": self.personal}, model, partition, batches, loss)

    @torch.no_grad()
    def _prior(self, model: nn.Module) -> Tensor:
        """Return the logarithm of the number of the device's examples of each class."""
        second = next((module for module in model.modules() if isinstance(module, SecondHead)), None)
        if second is None:
            raise ConfigError("FedRoD needs the partition `second_head`.")
        weight = second.layer.weight
        counts = torch.zeros(len(weight), dtype=torch.int64)
        model.eval()
        for positions in torch.arange(len(self.examples)).split(_BATCH_SIZE):
            _, targets = self.examples.predict(model, self.examples.batch_at(positions))
            if not isinstance(targets, Tensor) or targets.is_floating_point():
                raise ConfigError("FedRoD needs a task whose targets are classes, as whole numbers.")
            counts += count_classes(targets.flatten().cpu(), len(weight))
        return counts.to(weight).log()


METHOD = NamedMethod(
    title="FedRoD",
    update=LocalRoD,
    citation=Citation(
        key="chen2022",
        title="On Bridging Generic and Personalized Federated Learning for Image Classification",
        authors="Hong-You Chen and Wei-Lun Chao",
        venue="International Conference on Learning Representations",
        year=2022,
        arxiv="2107.00778",
    ),
    personal="second_head",
    order=42,
)
