"""The split-input model: some of the features go through personal layers.

Federated User Representation Learning
    D. Bui, K. Malik, J. Goetz, H. Liu, S. Moon, A. Kumar, K. G. Shin. 2019.
    https://arxiv.org/abs/1909.12535
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn


class SplitInput(nn.Module):
    """Shared layers for the first features, personal layers for the others, and shared layers on top.

    Private features pass through personal layers only, before they are combined with the others.

    Args:
        shared: a module for the first features.
        personal: a module for the other features.
        top: a module for the concatenated outputs of both.
        shared_features: the number of first features, which go through `shared`.
    """

    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {"input": ("personal.*",)}

    def __init__(
        self, shared: nn.Module, personal: nn.Module, top: nn.Module, *, shared_features: int
    ) -> None:
        super().__init__()
        self.shared = shared
        self.personal = personal
        self.top = top
        self.shared_features = shared_features

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the output for features in the last dimension."""
        count, features = self.shared_features, inputs.shape[-1]
        if not 0 < count < features:
            raise ValueError(
                f"`shared_features` must be between 0 and {features}, the number of features, got {count}."
            )
        shared, personal = self.shared(inputs[..., :count]), self.personal(inputs[..., count:])
        return self.top(torch.cat([shared, personal], dim=-1))
