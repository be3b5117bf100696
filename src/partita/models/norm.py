"""GroupNorm with the numbers of groups that the paper's networks have."""

import math

from torch import nn


def group_norm(channels: int) -> nn.GroupNorm:
    """Return a GroupNorm of 8 channels a group, from 128 channels on 16, and of at most 32 groups.

    >>> [group_norm(channels).num_groups for channels in (16, 64, 128, 256, 512, 2048)]
    [2, 8, 8, 16, 32, 32]
    """
    groups = min(max(min(channels // 8, 8), channels // 16, 1), 32)
    return nn.GroupNorm(math.gcd(channels, groups), channels)
