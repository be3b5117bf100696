"""EfficientNet-Lite0, for the ImageNet weights that `make pretrained` brings.

EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks
    M. Tan, Q. V. Le. ICML 2019.
    https://arxiv.org/abs/1905.11946

The Lite variants have ReLU6 instead of swish, and no squeeze-and-excitation.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from partita import Adapters

_STAGES = (
    # blocks, kernel, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _HEAD = 32, 1280


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 for color images of any size.

    Args:
        classes: the number of classes.
    """

    other_names: ClassVar[Mapping[str, str]] = {r"\b_": ""}
    parts: ClassVar[Mapping[str, Sequence[str] | Adapters]] = {
        "input": ("conv_stem.*", "bn0.weight", "bn0.bias"),
        "output": ("fc.*",),
        "head": ("fc.*",),
        "adapter": Adapters(
            after=("blocks.*.project_conv",), together_with=("blocks.*.bn?.weight", "blocks.*.bn?.bias")
        ),
    }

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        self.conv_stem = nn.Conv2d(3, _STEM, 3, stride=2, bias=False)
        self.bn0 = _norm(_STEM)
        blocks: list[nn.Module] = []
        entering = _STEM
        for count, kernel, stride, expansion, leaving in _STAGES:
            for number in range(count):
                blocks.append(_Block(entering, leaving, kernel, 1 if number else stride, expansion))
                entering = leaving
        self.blocks = nn.Sequential(*blocks)
        self.conv_head = nn.Conv2d(entering, _HEAD, 1, bias=False)
        self.bn1 = _norm(_HEAD)
        self.fc = nn.Linear(_HEAD, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of each class for a batch of images."""
        features = nn.functional.relu6(self.bn0(self.conv_stem(_padded(images, self.conv_stem))))
        features = nn.functional.relu6(self.bn1(self.conv_head(self.blocks(features))))
        return self.fc(features.mean(dim=(2, 3)))


class _Block(nn.Module):
    """An inverted bottleneck: a depthwise convolution between two 1x1 convolutions, and a skip."""

    def __init__(self, entering: int, leaving: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = entering * expansion
        self.expands, self.skips = expansion > 1, stride == 1 and entering == leaving
        if self.expands:
            self.expand_conv = nn.Conv2d(entering, inner, 1, bias=False)
            self.bn0 = _norm(inner)
        self.depthwise_conv = nn.Conv2d(inner, inner, kernel, stride=stride, groups=inner, bias=False)
        self.bn1 = _norm(inner)
        self.project_conv = nn.Conv2d(inner, leaving, 1, bias=False)
        self.bn2 = _norm(leaving)

    def forward(self, entering: Tensor) -> Tensor:
        features = entering
        if self.expands:
            features = nn.functional.relu6(self.bn0(self.expand_conv(features)))
        features = self.depthwise_conv(_padded(features, self.depthwise_conv))
        features = nn.functional.relu6(self.bn1(features))
        features = self.bn2(self.project_conv(features))
        return features + entering if self.skips else features


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _padded(features: Tensor, conv: nn.Conv2d) -> Tensor:
    """Return features with the padding of TensorFlow's `SAME`, as in training: more at the end."""
    size, kernel, stride = features.shape[-1], conv.kernel_size[0], conv.stride[0]
    missing = max(0, (-(-size // stride) - 1) * stride + kernel - size)
    return nn.functional.pad(features, (missing // 2, missing - missing // 2) * 2)
