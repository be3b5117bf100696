"""Adapters: small modules with a skip, inserted into a model that stays as it is.

Parameter-Efficient Transfer Learning for NLP
    N. Houlsby, A. Giurgiu, S. Jastrzebski, B. Morrone, Q. de Laroussilhe, A. Gesmundo, M. Attariyan,
    S. Gelly. ICML 2019.
    https://arxiv.org/abs/1902.00751

Learning Multiple Visual Domains with Residual Adapters
    S.-A. Rebuffi, H. Bilen, A. Vedaldi. NeurIPS 2017.
    https://arxiv.org/abs/1705.08045
"""

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from partita.models.norm import group_norm
from partita.partition import Partition, Personalization, Regularization, Selection
from partita.partition.tensors import tensors_of
from partita.protocol import DeviceId

Width = int | Callable[[DeviceId], int]
"""Bottleneck width of adapters: one for all devices, or a function of the device's id; 0 is the paper's."""

_BOTTLENECK = 16


@dataclass(frozen=True)
class Resizable:
    """A part of a model that has adapters already, such as LoRA, whose size can be changed."""

    patterns: Sequence[str]
    """Patterns of its tensors."""
    resize: Callable[..., nn.Module]
    """`resize(model, width=...)` gives the adapters of a model another width, in place. They are initialized
    again, and equal wider adapters whose further units are 0."""


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Places of a model that take adapters."""

    after: str | Sequence[str]
    """Patterns of the modules that adapters go after: linear layers, attention or 2-D convolutions."""
    together_with: str | Sequence[str] = ()
    """Patterns of tensors that are personal together with the adapters, such as normalization layers."""


class BottleneckAdapter(nn.Module):
    """Houlsby's adapter: a down projection, ReLU, an up projection and a skip connection."""

    def __init__(self, dim: int, *, width: int = 0) -> None:
        super().__init__()
        self.down = nn.Linear(dim, width or _BOTTLENECK)
        self.up = nn.Linear(width or _BOTTLENECK, dim)
        # The scale of width 16 in a layer of 256, whatever the width.
        gain = min(1.0, math.sqrt(16 * 256 / (self.down.out_features * dim)))
        for layer, std in ((self.down, 1e-2), (self.up, 1e-2 * gain)):
            nn.init.normal_(layer.weight, std=std)
            nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return the adapted features; a new adapter is close to the identity."""
        return features + self.up(torch.relu(self.down(features)))


class ResidualAdapter(nn.Module):
    """Rebuffi's adapter: a normalization, a 1x1 convolution and a skip connection.

    With a width, two 1x1 convolutions through that many channels.
    """

    def __init__(self, channels: int, *, width: int = 0) -> None:
        super().__init__()
        self.norm = group_norm(channels)
        self.narrow = nn.Conv2d(channels, width, 1, bias=False) if width else nn.Identity()
        self.conv = nn.Conv2d(width or channels, channels, 1, bias=False)
        nn.init.normal_(self.conv.weight, std=1e-4 * min(1.0, math.sqrt(64 / self.conv.in_channels)))

    def forward(self, features: Tensor) -> Tensor:
        """Return the adapted features; a new adapter is close to the identity."""
        return features + self.conv(self.narrow(self.norm(features)))


def adapters(
    model: nn.Module,
    where: Adapters,
    *,
    width: Width = 0,
    regularization: Regularization | None = None,
    **others: Any,
) -> Personalization:
    """Make adapters personal and share the rest of the model.

    Args:
        model: the model without adapters.
        where: the modules that adapters go after.
        width: bottleneck width on all devices, or a function from a device's id to it; 0 is the paper's
            width: 16 after linear layers and attention, all channels after convolutions.
        regularization: dropout and L2 penalty on the personal part.
        others: further arguments of `Partition`, such as `frozen`.

    >>> net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> adapters(net, Adapters(after=["0"]), width=1).partition.names("personal")
    ('0.adapter.down.weight', '0.adapter.down.bias', '0.adapter.up.weight', '0.adapter.up.bias')
    """
    if not isinstance(where, Adapters):
        raise TypeError(f"`where` must be Adapters(after=...), got {where!r}.")
    before = frozenset(tensors_of(model))
    personal = [lambda name, _: name not in before, *patterns(where.together_with)]

    def of_width(width: int) -> Personalization:
        prepare = partial(insert_adapters, where=where, width=width)
        partition = Partition(model, personal=personal, prepare=prepare, **others)
        return Personalization(partition, regularization=regularization or Regularization())

    return _sized(width, of_width)


def resized(
    model: nn.Module,
    adapters: Resizable,
    *,
    width: Width,
    regularization: Regularization | None = None,
    **others: Any,
) -> Personalization:
    """Split a model that has adapters already, in another width; `width` 0 leaves them as they are.

    Adapters may be in any part. Where some of them are shared and the width is a function of the device, a
    device has the first units of the model's own.

    Args:
        model: the model with adapters.
        adapters: the adapters.
        width: their width on all devices, or a function from a device's id to it.
        regularization: dropout and L2 penalty on the personal part.
        others: further arguments of `Partition`, such as `personal`.
    """

    def of_width(width: int) -> Personalization:
        prepare = partial(adapters.resize, width=width) if width else None
        partition = Partition(model, prepare=prepare, **others)
        return Personalization(partition, regularization=regularization or Regularization())

    return _sized(width, of_width)


def _sized(width: Width, of_width: Callable[[int], Personalization]) -> Personalization:
    """Return the personalization with adapters of a width, or of one for each device."""
    if isinstance(width, bool) or not (isinstance(width, int) or callable(width)):
        raise TypeError(f"`width` must be a whole number or a function of a device's id, got {width!r}.")
    if isinstance(width, int):
        return of_width(width)
    known = cache(of_width)
    return replace(known(0), by_device=partial(_by_width, width=width, of_width=known))


def shared_adapters(
    model: nn.Module,
    where: Adapters,
    *,
    width: Width = 0,
    largest: int = 0,
    frozen: Selection = (),
) -> Personalization:
    """Let all devices train adapters together, with the parameters of the model fixed after pretraining.

    Where the width is a function of the device, a device has the first units of the shared adapters.

    Args:
        model: the model without adapters.
        where: the modules that adapters go after.
        width: bottleneck width on all devices, or a function from a device's id to it, as in `adapters`.
        largest: with such a function, the width of the shared adapters.
        frozen: tensors that are fixed in pretraining too.
    """
    if where.together_with:
        raise ValueError("Adapters can only be shared where no other tensors belong to them.")

    @cache
    def of_width(width: int) -> Personalization:
        prepare = partial(insert_adapters, where=where, width=width, fixes_others=True)
        return Personalization(Partition(model, frozen=frozen, prepare=prepare))

    if isinstance(width, int):
        return of_width(width)
    if largest < 1:
        raise ValueError(
            "Shared adapters whose width is a function of the device need `largest_width`, the width of the "
            f"shared ones, at least 1, got {largest}."
        )
    return replace(of_width(largest), by_device=partial(_by_width, width=width, of_width=of_width))


def _by_width(
    device: DeviceId, *, width: Callable[[DeviceId], int], of_width: Callable[[int], Personalization]
) -> Personalization:
    own = width(device)
    if not isinstance(own, Integral) or isinstance(own, bool) or own < 1:
        raise ValueError(
            f"An adapter's width must be a whole number, at least 1, got {own!r} for device {device!r}."
        )
    return of_width(int(own))


def insert_adapters(
    model: nn.Module, *, where: Adapters, width: int = 0, fixes_others: bool = False
) -> nn.Module:
    """Add an adapter to every module that `where` names, in place; existing names stay the same.

    With `fixes_others`, all other parameters take no gradient from then on.
    """
    if width < 0:
        raise ValueError(f"The width of an adapter must be 0 (the paper's) or above, got {width}.")
    modules = dict(model.named_modules())
    found: dict[str, nn.Module] = {}
    for pattern in patterns(where.after):
        matches = {name: module for name, module in modules.items() if fnmatchcase(name, pattern)}
        if not matches:
            near = difflib.get_close_matches(pattern, modules, n=4, cutoff=0.4) or list(modules)[1:5]
            raise ValueError(
                f"No module of {type(model).__name__} to adapt matches {pattern!r}. "
                f"Near names: {', '.join(near)}."
            )
        found |= matches
    if fixes_others:
        model.requires_grad_(False)
    for name, module in found.items():
        if "adapter" in dict(module.named_children()):
            raise ValueError(f"`{name}` already has an adapter.")
        owner = name.rpartition(".")[0]
        if isinstance(modules.get(owner), nn.MultiheadAttention):
            raise ValueError(f"`{name}` is never called by the attention around it: adapt `{owner}`.")
        module.adapter = _fitting(name, module, width).to(next(module.parameters()))
        module.register_forward_hook(_through_adapter)
    return model


def patterns(given: str | Sequence[str]) -> list[str]:
    """Return one or several patterns as a list."""
    return [given] if isinstance(given, str) else list(given)


def _fitting(name: str, module: nn.Module, width: int) -> nn.Module:
    match module:
        case nn.Linear():
            return BottleneckAdapter(module.out_features, width=width)
        case nn.MultiheadAttention():
            return BottleneckAdapter(module.embed_dim, width=width)
        case nn.Conv2d():
            return ResidualAdapter(module.out_channels, width=width)
        case _:
            raise ValueError(
                f"An adapter can go after a Linear, a MultiheadAttention or a Conv2d, got `{name}`, a "
                f"{type(module).__name__}."
            )


def _through_adapter(module: nn.Module, _: Any, output: Any) -> Any:
    """Pass a module's output through its adapter; attention returns its weights beside the output."""
    adapter = module.get_submodule("adapter")
    return (adapter(output[0]), *output[1:]) if isinstance(output, tuple) else adapter(output)
