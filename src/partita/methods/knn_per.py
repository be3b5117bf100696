"""kNN-Per: FedAvg, and a memory of each device's own examples when it predicts.

Personalized Federated Learning through Local Memorization
    O. Marfoq, G. Neglia, L. Kameni, R. Vidal. ICML 2022.
    https://arxiv.org/abs/2111.09360

Devices train one model together. A device predicts with the mean of that model's probabilities and those of
the nearest of its own training examples, by the squared distance of the inputs of the model's head: each of
the k nearest votes for its class with weight exp(-distance / (dimension x scale)). Nothing is trained or kept
for it, so a device that training has not seen predicts in the same way. On its own training examples a device
meets each example again in its memory. The paper chooses the weight of the memory for each device, on its
validation examples; here all devices have the same one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from partita.errors import ConfigError
from partita.methods.declared import OwnExamples
from partita.methods.descent import Batch, LossFn, Phases, Steps, descend
from partita.methods.fedavg import NO_PERSONAL_STEPS
from partita.methods.named import SHARED_RATE, Citation, NamedMethod
from partita.models.heads import head_inputs, head_name
from partita.models.parts import parts_of
from partita.partition import Partition

_BATCH_SIZE = 256
"""Examples that are memorized at a time."""
_CLASSES = (
    "kNN-Per needs a task whose targets are classes, a whole number for each input of the head, and a model "
    "that returns their scores."
)


@dataclass(frozen=True, kw_only=True)
class LocalMemory:
    """Update u; predict with a memory of the device's own examples."""

    phases: ClassVar[Phases] = (("shared",),)

    personal: Steps
    """Not used: every update is given steps for both parts."""
    shared: Steps
    """Steps on u, the shared part."""
    neighbors: int = 10
    """The number k of nearest examples that vote."""
    memory_weight: float = 0.5
    """The weight of the memory in the mean, the paper's lambda, from 0 to 1."""
    scale: float = 1.0
    """The scale of distances: with a larger one, neighbors vote with more equal weights."""

    def __post_init__(self) -> None:
        if self.neighbors < 1:
            raise ValueError(f"`neighbors` must be at least 1, got {self.neighbors}.")
        if not 0 <= self.memory_weight <= 1:
            raise ValueError(f"`memory_weight` must be from 0 to 1, got {self.memory_weight!r}.")
        if not 0 < self.scale < float("inf"):
            raise ValueError(f"`scale` must be a finite number above 0, got {self.scale!r}.")

    @staticmethod
    def predicts(
        model: nn.Module, examples: OwnExamples, *, neighbors: int, memory_weight: float, scale: float
    ) -> nn.Module:
        """Return the model with a memory of the device's examples; without examples, the model itself."""
        if not len(examples):
            return model
        settings = {"neighbors": neighbors, "memory_weight": memory_weight, "scale": scale}
        return Memory(model, *_memorized(model, examples), **settings)

    def __call__(
        self,
        model: nn.Module,
        partition: Partition,
        batches: Iterable[Batch],
        loss: LossFn,
    ) -> list[float]:
        """Train the model in place and return the loss of every step."""
        return descend({"shared": self.shared}, model, partition, batches, loss)


class Memory(nn.Module):
    """A classifier with a memory: its outputs are the logarithms of mean probabilities.

    Args:
        model: the classifier.
        keys: the inputs of its head for each memorized example.
        labels: the class of each.
        neighbors: the number of nearest examples that vote.
        memory_weight: the weight of the memory in the mean.
        scale: the scale of distances.
    """

    def __init__(
        self,
        model: nn.Module,
        keys: Tensor,
        labels: Tensor,
        *,
        neighbors: int,
        memory_weight: float,
        scale: float,
    ) -> None:
        super().__init__()
        self.model = model
        self.keys = nn.Buffer(keys)
        self.labels = nn.Buffer(labels)
        self._head = head_name(model, parts_of(model))
        self.classes = model.get_parameter(f"{self._head}.weight").shape[0]
        self.neighbors = min(neighbors, len(keys))
        self.memory_weight = memory_weight
        self.scale = scale

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Return the logarithm of each class's probability."""
        with head_inputs(self.model, self._head) as found:
            scores = self.model(*inputs, **options)
        if scores.shape[-1] != self.classes:
            raise ConfigError(_CLASSES)
        votes = self._votes(found[0].detach().reshape(-1, self.keys.shape[1]), scores.shape[-1])
        own = torch.softmax(scores, dim=-1)
        mean = torch.lerp(own, votes.view_as(own).to(own), self.memory_weight)
        return mean.clamp_min(torch.finfo(mean.dtype).tiny).log()

    def _votes(self, queries: Tensor, classes: int) -> Tensor:
        """Return the share of the votes that each class gets, for each query."""
        exact = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(queries, self.keys, compute_mode=exact).square()
        nearest = distances.topk(self.neighbors, dim=1, largest=False)
        shares = torch.softmax(-nearest.values / (queries.shape[1] * self.scale), dim=1)
        return shares.new_zeros(len(queries), classes).scatter_add(1, self.labels[nearest.indices], shares)


def _memorized(model: nn.Module, examples: OwnExamples) -> tuple[Tensor, Tensor]:
    """Return the inputs of the model's head for all examples, and their classes.

    Raises:
        ConfigError: the targets are not one class for each input of the head.
    """
    keys: list[Tensor] = []
    labels: list[Tensor] = []
    name = head_name(model, parts_of(model))
    for positions in torch.arange(len(examples)).split(_BATCH_SIZE):
        with head_inputs(model, name) as found:
            _, targets = examples.predict(model, examples.batch_at(positions))
        rows = found[0].flatten(0, -2)
        if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.numel() != len(rows):
            raise ConfigError(_CLASSES)
        known = targets.flatten() >= 0
        keys.append(rows[known])
        labels.append(targets.flatten()[known])
    return torch.cat(keys), torch.cat(labels)


METHOD = NamedMethod(
    title="kNN-Per",
    update=LocalMemory,
    citation=Citation(
        key="marfoq2022",
        title="Personalized Federated Learning through Local Memorization",
        authors="Othmane Marfoq and Giovanni Neglia and Laetitia Kameni and Richard Vidal",
        venue="International Conference on Machine Learning",
        year=2022,
        arxiv="2111.09360",
    ),
    personal="none",
    fixed=NO_PERSONAL_STEPS,
    rates=(SHARED_RATE,),
    search={
        "personalize.memory_weight": (0.1, 0.3, 0.5, 0.7, 0.9),
        "personalize.neighbors": (5, 10, 20),
        "personalize.scale": (0.1, 1.0, 10.0),
    },
    order=43,
)
