"""ResNets with GroupNorm, for small and for large images.

Deep Residual Learning for Image Recognition
    K. He, X. Zhang, S. Ren, J. Sun. CVPR 2016.
    https://arxiv.org/abs/1512.03385

GroupNorm replaces BatchNorm, whose batch statistics do not suit devices with different data:

The Non-IID Data Quagmire of Decentralized Machine Learning
    K. Hsieh, A. Phanishayee, O. Mutlu, P. Gibbons. ICML 2020.
    https://arxiv.org/abs/1910.00189
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from partita.models.adapters import Adapters
from partita.models.norm import group_norm

_BLOCKS = {
    10: (1, 1, 1, 1),
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Blocks in each of the four layers, by depth."""
_STEMS = ("small", "large")


class ResNet(nn.Module):
    """A residual network for image classification; the defaults are the paper's for 28x28 characters.

    Its parameters have torchvision's names, with `norm` for `bn`.

    Args:
        depth: 10, 18 or 34 (basic blocks), 50, 101 or 152 (bottleneck blocks).
        classes: the number of classes.
        channels: the number of channels of an image: 1 for gray, 3 for color.
        width: a factor for the numbers of channels of all layers.
        stem: `small`, a 3x3 convolution, for images of about 28x28; `large`, a 7x7 convolution of stride 2
            and max pooling, for about 224x224.
    """

    other_names: ClassVar[Mapping[str, str]] = {r"\bbn(\d)": r"norm\1"}

    def __init__(
        self,
        *,
        depth: int = 18,
        classes: int = 62,
        channels: int = 1,
        width: float = 1.0,
        stem: str = "small",
    ) -> None:
        super().__init__()
        if depth not in _BLOCKS:
            raise ValueError(f"`depth` must be one of {', '.join(map(str, _BLOCKS))}, got {depth!r}.")
        if stem not in _STEMS:
            raise ValueError(f"`stem` must be one of {', '.join(_STEMS)}, got {stem!r}.")
        if not 1 / 64 <= width < float("inf"):
            raise ValueError(f"`width` must be finite and at least 1/64, one of 64 channels, got {width!r}.")
        widths = [round(width * base) for base in (64, 128, 256, 512)]
        self._adapted = "conv2" if depth >= 50 else "conv[12]"
        self.conv1, self.pool = _stem(channels, widths[0], stem)
        self.norm1 = group_norm(widths[0])
        block = _Bottleneck if depth >= 50 else _Basic
        entering = widths[0]
        for number, (inner, count) in enumerate(zip(widths, _BLOCKS[depth], strict=True), start=1):
            strides = [1 if number == 1 else 2] + [1] * (count - 1)
            blocks: list[nn.Module] = []
            for stride in strides:
                blocks.append(block(entering, inner, stride))
                entering = inner * block.expansion
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
        self.fc = nn.Linear(entering, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def parts(self) -> Mapping[str, Sequence[str] | Adapters]:
        """The first convolution, the output layer, adapters after every 3x3 convolution of a block."""
        return {
            "input": ("conv1.*", "norm1.*"),
            "output": ("fc.*",),
            "head": ("fc.*",),
            "adapter": Adapters(
                after=(f"layer?.*.{self._adapted}",), together_with=("norm1.*", "layer?.*.norm?.*")
            ),
        }

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of each class for a batch of images."""
        features = self.pool(torch.relu(self.norm1(self.conv1(images))))
        for number in range(1, 5):
            features = self.get_submodule(f"layer{number}")(features)
        return self.fc(features.mean(dim=(2, 3)))


def _stem(channels: int, width: int, stem: str) -> tuple[nn.Conv2d, nn.Module]:
    if stem == "small":
        return nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.Identity()
    pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
    return nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False), pool


def _shortcut(entering: int, leaving: int, stride: int) -> nn.Sequential | None:
    """Return the layers that bring a block's input to the shape of its output, None if it has that shape."""
    if stride == 1 and entering == leaving:
        return None
    return nn.Sequential(nn.Conv2d(entering, leaving, 1, stride=stride, bias=False), group_norm(leaving))


class _Basic(nn.Module):
    """A basic block: two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, entering: int, inner: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(entering, inner, 3, stride=stride, padding=1, bias=False)
        self.norm1 = group_norm(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False)
        self.norm2 = group_norm(inner)
        self.downsample = _shortcut(entering, inner, stride)

    def forward(self, features: Tensor) -> Tensor:
        shortcut = features if self.downsample is None else self.downsample(features)
        features = torch.relu(self.norm1(self.conv1(features)))
        return torch.relu(self.norm2(self.conv2(features)) + shortcut)


class _Bottleneck(nn.Module):
    """A bottleneck block: a 3x3 convolution between two 1x1 convolutions, and a shortcut."""

    expansion = 4

    def __init__(self, entering: int, inner: int, stride: int) -> None:
        super().__init__()
        leaving = self.expansion * inner
        self.conv1 = nn.Conv2d(entering, inner, 1, bias=False)
        self.norm1 = group_norm(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.norm2 = group_norm(inner)
        self.conv3 = nn.Conv2d(inner, leaving, 1, bias=False)
        self.norm3 = group_norm(leaving)
        self.downsample = _shortcut(entering, leaving, stride)

    def forward(self, features: Tensor) -> Tensor:
        shortcut = features if self.downsample is None else self.downsample(features)
        features = torch.relu(self.norm1(self.conv1(features)))
        features = torch.relu(self.norm2(self.conv2(features)))
        return torch.relu(self.norm3(self.conv3(features)) + shortcut)
