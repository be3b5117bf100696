"""HetLoRA: low-rank modules that all devices train together, each device with a rank of its own.

Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models
    Y. J. Cho, L. Liu, Z. Xu, A. Fahrezi, G. Joshi. EMNLP 2024.
    https://arxiv.org/abs/2401.06432

The shared part has the largest rank. A device gets the first rows and columns of it, as many as its own rank,
and its reply counts as padded with zeros. Replies weigh by the norm of what a device's low-rank modules add
to the model, the paper's sparsity-weighted aggregation. Ranks are fixed: the paper's pruning of ranks is left
out (its gamma = 1).

The partition defines the low-rank modules and the rank of each device: any partition in which the shared
tensors of a device's model are smaller in one dimension than those of the largest model. The built-in
networks have adapters for that: `partition.shared = "adapter"`, with a width that is a function of the
device. A pretrained model has LoRA: `partition.shared = "rest"` or "lora".
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from partita.methods.descent import Batch, LossFn, Phases, Steps, descend
from partita.methods.fedavg import NO_PERSONAL_STEPS
from partita.methods.named import SHARED_RATE, Citation, NamedMethod
from partita.params import Params
from partita.partition import Partition

_SCALE = 2**30
"""Weights are whole numbers: a norm of 1 is this one."""


@dataclass(frozen=True, kw_only=True)
class LocalHetLoRA:
    """Update u, of which a device has as much as its rank allows."""

    phases: ClassVar[Phases] = (("shared",),)

    personal: Steps
    """Not used: every update is given steps for both parts."""
    shared: Steps
    """Steps on u, the shared part."""

    @staticmethod
    def fills(sent: Tensor) -> Tensor:
        """Return zeros, with which a reply is padded."""
        return torch.zeros_like(sent)

    @staticmethod
    def weighs(shared: Params, examples: int) -> int:
        """Return the Frobenius norm of the products B A of all low-rank modules, in steps of 2^-30."""
        squares = [_squared_norm(first, second) for first, second in _pairs(shared)]
        return max(1, round(math.sqrt(math.fsum(squares)) * _SCALE))

    def __call__(
        self,
        model: nn.Module,
        partition: Partition,
        batches: Iterable[Batch],
        loss: LossFn,
    ) -> list[float]:
        """Train the model in place and return the loss of every step."""
        return descend({"shared": self.shared}, model, partition, batches, loss)


def _pairs(shared: Params) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the matrices A and B of each low-rank module: one after the other, with the rank between them."""
    matrices = {name: tensor.detach().flatten(1) for name, tensor in shared.items() if tensor.dim() > 1}
    first = None
    for name, matrix in matrices.items():
        if first is not None and _are_factors(first, matrices[first], name, matrix):
            yield matrices[first], matrix
            first = None
        else:
            first = name


def _are_factors(name: str, a: Tensor, other: str, b: Tensor) -> bool:
    """Return whether two matrices are A and B of one module, and not two layers of a head, for example.

    They are neighbors in the model, and the rank between them is small.
    """
    path, other_path = name.split("."), other.split(".")
    are_neighbors = len(path) == len(other_path) and sum(map(str.__ne__, path, other_path)) == 1
    rank = len(a)
    return are_neighbors and b.shape[1] == rank and (rank < a.shape[1] or rank <= len(b))


def _squared_norm(first: Tensor, second: Tensor) -> float:
    """Return ||B A||^2, the sum of (A A^T) * (B^T B), without the product itself."""
    a, b = first.cpu().double(), second.cpu().double()
    return ((a @ a.T) * (b.T @ b)).sum().clamp_min(0).item()


METHOD = NamedMethod(
    title="HetLoRA",
    update=LocalHetLoRA,
    citation=Citation(
        key="cho2024",
        title="Heterogeneous {LoRA} for Federated Fine-tuning of On-Device Foundation Models",
        authors="Yae Jee Cho and Luyang Liu and Zheng Xu and Aldi Fahrezi and Gauri Joshi",
        venue="Conference on Empirical Methods in Natural Language Processing",
        year=2024,
        arxiv="2401.06432",
    ),
    personal="none",
    fixed=NO_PERSONAL_STEPS,
    suggested={"partition.shared": "adapter"},
    rates=(SHARED_RATE,),
    order=44,
)
