"""Images in channels-last memory format, in which convolutions and pooling on the CPU are faster.

A model that consists of layers known to work in this format, from images to flat features, gets its inputs in
it. Nothing else changes: the task's code, the method and the server see the same tensors as before.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from partita.device.roles import Role
from partita.methods.declared import kind_of
from partita.models.convnet import ConvNet
from partita.protocol import Stage
from partita.reuse.still import has_hooks

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
_LAYERS = frozenset(
    [
        *(*_CONVOLUTIONS, nn.BatchNorm2d, nn.ZeroPad2d, nn.Identity, nn.Dropout, nn.Dropout2d),
        *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
        *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU, nn.Hardswish, nn.ReLU6, nn.Sigmoid, nn.Tanh),
    ]
)
"""Layers that were tried in this format, whatever takes a gradient. GroupNorm is none of them: that of torch
2.13 crashes where its weights take a gradient and its input takes none."""
_IMAGES = 4
"""Dimensions of a batch of images: examples, channels, height and width."""


def use_channels_last(model: nn.Module) -> bool:
    """Let a model compute images in channels-last format from now on, in place, and return whether it does.

    It follows from the model's layers alone, so all processes and devices come to the same decision.
    """
    if has_hooks(model) or not (type(model) is ConvNet or _is_known(model)):
        return False
    model.register_forward_pre_hook(_arrange)
    return True


def has_known_updates(roles: Mapping[Stage, Role]) -> bool:
    """Return whether all updates are Partita's: others could depend on the format of a gradient."""
    updates = [local for role in roles.values() for local in (role.method.local, role.own) if local]
    return all(kind_of(local).__module__.startswith("partita.") for local in updates)


def channels_last(value: Any) -> Any:
    """Return images in channels-last memory format, and anything else as it is.

    >>> channels_last(torch.ones(2, 3, 4, 5)).stride()
    (60, 1, 15, 3)
    """
    if not isinstance(value, Tensor) or value.dim() != _IMAGES:
        return value
    if value.shape[1] == 1:
        # It has both formats, and is in the one that its strides say.
        _, channels, height, width = value.shape
        return value.contiguous().as_strided(value.shape, (height * width, channels, width, channels))
    return value.contiguous(memory_format=torch.channels_last)


def _is_known(model: nn.Module) -> bool:
    """Return whether a model begins with a convolution and has known layers alone until it flattens."""
    for number, layer in enumerate(_layers(model)):
        if type(layer) is nn.Flatten and number:
            return (layer.start_dim, layer.end_dim) == (1, -1)
        # What the first layer returns must not be memory of its input, which later ones may change in place.
        if type(layer) not in (_LAYERS if number else _CONVOLUTIONS) or "forward" in vars(layer):
            return False
    return False


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of nested sequences, one after the other."""
    if type(module) is not nn.Sequential or "forward" in vars(module):
        yield module
        return
    for child in module.children():
        yield from _layers(child)


def _arrange(model: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a model's inputs in channels-last format, unless the task's code could see the difference."""
    is_watched = len(model._forward_pre_hooks) > 1 or any(map(has_hooks, model.children()))  # noqa: SLF001
    is_differentiated = any(isinstance(value, Tensor) and value.requires_grad for value in given)
    level = torch._C._functorch.maybe_current_level()  # pyright: ignore[reportAttributeAccessIssue] # noqa: SLF001
    if is_watched or is_differentiated or level is not None:  # The last by `torch.func.vmap`, for example.
        return given
    return tuple(map(channels_last, given))
