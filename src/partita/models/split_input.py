"""The split-input model: a part of the features goes through layers that are the device's own.

Federated User Representation Learning
    D. Bui, K. Malik, J. Goetz, H. Liu, S. Moon, A. Kumar, K. G. Shin. 2019.
    https://arxiv.org/abs/1909.12535
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn


class SplitInput(nn.Module):
    """Shared layers for the first features, personal ones for the rest, and a model on top of both.

    Private features so meet nothing but personal layers before they are mixed with others.

    Args:
        shared: from the first features to some numbers.
        personal: from the other features to some numbers.
        top: from both, one after the other, to the output; it is shared.
        at: how many features are the first ones.
    """

    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {"input": ("personal.*",)}

    def __init__(self, shared: nn.Module, personal: nn.Module, top: nn.Module, *, at: int) -> None:
        super().__init__()
        self.shared = shared
        self.personal = personal
        self.top = top
        self.at = at

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the output for features in the last dimension."""
        if not 0 < self.at < inputs.shape[-1]:
            raise ValueError(f"`at` must be between 0 and {inputs.shape[-1]}, the features, got {self.at}.")
        first, rest = self.shared(inputs[..., : self.at]), self.personal(inputs[..., self.at :])
        return self.top(torch.cat([first, rest], dim=-1))
