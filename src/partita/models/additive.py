"""The generalized additive model: the sum or the mixture of a shared and a personal model.

Federated Residual Learning
    A. Agarwal, J. Langford, C.-Y. Wei. 2020.
    https://arxiv.org/abs/2003.12880
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Additive(nn.Module):
    """The sum of a shared and a personal model: each fits the residual of the other.

    For a representation that both use, put a shared layer in front: `nn.Sequential(encoder, Additive(...))`.

    Args:
        shared: any module.
        personal: any module with the same output shape.
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
    """A mixture of the class distributions of a shared and a personal model, with a learned weight.

    The distribution is theta p + (1 - theta) p_i with theta in (0, 1). The output is log probabilities, which
    `cross_entropy` accepts like scores. Theta is personal.

    Args:
        shared: any module whose output has class scores in its last dimension.
        personal: another such module, for the same classes.
        theta: the initial weight of the shared model.
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
        """The weight of the shared model."""
        return torch.sigmoid(self.balance)

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Return the log probabilities of the classes."""
        shared = self.shared(*inputs, **options).log_softmax(dim=-1)
        personal = self.personal(*inputs, **options).log_softmax(dim=-1)
        logsigmoid = nn.functional.logsigmoid
        return torch.logaddexp(logsigmoid(self.balance) + shared, logsigmoid(-self.balance) + personal)
