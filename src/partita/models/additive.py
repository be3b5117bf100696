"""The generalized additive model: a shared model and a personal one answer together.

Federated Residual Learning
    A. Agarwal, J. Langford, C.-Y. Wei. 2020.
    https://arxiv.org/abs/2003.12880
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Additive(nn.Module):
    """The sum of what a shared and a personal model give: each fits what the other leaves over.

    For a representation that both use, put a shared layer in front: `nn.Sequential(encoder, Additive(...))`.

    Args:
        shared: any module.
        personal: any module that gives the same shape.
    """

    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {"additive": ("personal.*",)}

    def __init__(self, shared: nn.Module, personal: nn.Module) -> None:
        super().__init__()
        self.shared = shared
        self.personal = personal

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Return the sum of both outputs."""
        return self.shared(*inputs, **options) + self.personal(*inputs, **options)


class Mixture(nn.Module):
    """A mixture of the classes' distributions by a shared and a personal model, whose shares are learned.

    The distribution is theta p + (1 - theta) p_i with theta in (0, 1). It is given as log probabilities,
    so that `cross_entropy` can take it as it takes scores. Theta is the device's own.

    Args:
        shared: any module that gives scores of classes in its last dimension.
        personal: another one, for as many classes.
        theta: with which share of the shared model to begin.
    """

    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {"additive": ("personal.*", "balance")}

    def __init__(self, shared: nn.Module, personal: nn.Module, *, theta: float = 0.5) -> None:
        super().__init__()
        if not 0 < theta < 1:
            raise ValueError(f"`theta` must be between 0 and 1, got {theta!r}.")
        self.shared = shared
        self.personal = personal
        self.balance = nn.Parameter(torch.tensor(theta).logit())

    @property
    def theta(self) -> Tensor:
        """The share of the shared model."""
        return torch.sigmoid(self.balance)

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Return the log probabilities of the classes."""
        shared = self.shared(*inputs, **options).log_softmax(dim=-1)
        personal = self.personal(*inputs, **options).log_softmax(dim=-1)
        logsigmoid = nn.functional.logsigmoid
        return torch.logaddexp(logsigmoid(self.balance) + shared, logsigmoid(-self.balance) + personal)
