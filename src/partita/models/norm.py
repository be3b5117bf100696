"""GroupNorm with the numbers of groups of the paper's networks."""

import math

from torch import nn


def group_norm(channels: int) -> nn.GroupNorm:
    """Return a GroupNorm with 8 channels per group, 16 from 128 channels on, and at most 32 groups.

    >>> [group_norm(channels).num_groups for channels in (16, 64, 128, 256, 512, 2048)]
    [2, 8, 8, 16, 32, 32]
    """
    groups = min(max(min(channels // 8, 8), channels // 16, 1), 32)
    return nn.GroupNorm(math.gcd(channels, groups), channels)
