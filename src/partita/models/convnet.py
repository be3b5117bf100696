"""A small convolutional network for small gray images."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from partita.models.adapters import Adapters


class ConvNet(nn.Module):
    """Two convolutions, a hidden layer and an output layer.

    Args:
        classes: the number of classes.
        size: the height and width of an image.
        width: the number of channels of the first convolution.
    """

    parts: ClassVar[Mapping[str, Sequence[str] | Adapters]] = {
        "input": ("stem.*",),
        "output": ("head.*",),
        "head": ("head.*",),
        "adapter": Adapters(after=("stem", "body")),
    }

    def __init__(self, *, classes: int = 10, size: int = 8, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, kernel_size=3, padding=1)
        self.body = nn.Conv2d(width, 2 * width, kernel_size=3, padding=1)
        self.hidden = nn.Linear(2 * width * (size // 2) ** 2, 64)
        self.head = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of each class for a batch of images with one channel."""
        features = torch.relu(self.body(torch.relu(self.stem(images))))
        features = nn.functional.max_pool2d(features, 2).flatten(1)
        return self.head(torch.relu(self.hidden(features)))
