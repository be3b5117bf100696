"""FedAlt whose personal part has momentum from one visit of a device to the next."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import partita


@dataclass(frozen=True, kw_only=True)
class LocalMomentum:
    """Update v, add the momentum of the device's earlier visits, then update u."""

    personal: partita.Steps
    """Steps on v, the personal part."""
    shared: partita.Steps
    """Steps on u, the shared part."""
    carried: partita.Carried
    """The momentum of v, which the device keeps."""
    decay: float = 0.5
    """Share of the momentum that remains after a visit."""

    @staticmethod
    def keeps(shared: Mapping[str, Tensor], personal: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the momentum before the first visit: 0."""
        return {f"momentum/{name}": torch.zeros_like(tensor) for name, tensor in personal.items()}

    def __call__(
        self, model: nn.Module, partition: partita.Partition, batches: Iterable[Any], loss: Any
    ) -> list[float]:
        """Train the model in place and return the loss of every step."""
        personal = partition.of(model).personal
        before = {name: tensor.detach().clone() for name, tensor in personal.items()}
        losses = partita.descend({"personal": self.personal}, model, partition, batches, loss)
        with torch.no_grad():
            for key, momentum in self.carried.kept.items():
                name = key.removeprefix("momentum/")
                momentum.mul_(self.decay).add_(personal[name] - before[name])
                personal[name].copy_(before[name] + momentum)
        return losses + partita.descend({"shared": self.shared}, model, partition, batches, loss)


METHOD = partita.NamedMethod(
    title="Momentum",
    update=LocalMomentum,
    search={"personalize.decay": (0.2, 0.5, 0.8)},
)
