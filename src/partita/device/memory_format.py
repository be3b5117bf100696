"""Images in channels-last memory format, in which convolutions and pooling on the CPU are faster.

A model that is known to work in this format on its whole way from images to flat features gets its inputs in
it. Nothing else changes: the task's code, the method and the server see the same tensors as before.
"""

import copy
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from partita.device.roles import Role
from partita.methods.declared import kind_of
from partita.protocol import Stage
from partita.reuse.still import has_hooks

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
_LAYERS = frozenset(
    [
        *(nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.ZeroPad2d, nn.Identity, nn.Dropout, nn.Dropout2d),
        *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
        *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU, nn.Hardswish, nn.ReLU6, nn.Sigmoid, nn.Tanh),
    ]
)
"""Layers that were tried in this format, whatever takes a gradient. With GroupNorm no model computes in it:
that of torch 2.13 crashes where its weights take a gradient and its input takes none."""
_FUNCTIONS = frozenset(
    [
        *(functional.relu, functional.leaky_relu, functional.elu, functional.silu, functional.gelu),
        *(functional.hardswish, functional.relu6, torch.relu, torch.sigmoid, torch.tanh),
        *(functional.max_pool2d, functional.avg_pool2d, functional.adaptive_avg_pool2d),
        *(functional.dropout, functional.dropout2d, torch.add, operator.add, operator.iadd, torch.cat),
    ]
)
_METHODS = frozenset(["relu", "relu_", "sigmoid", "tanh", "add", "add_"])
_IMAGES = 4
"""Dimensions of a batch of images: examples, channels, height and width."""


def use_channels_last(model: nn.Module) -> bool:
    """Let a model compute images in channels-last format from now on, in place, and return whether it does.

    It follows from the model's code alone, so all processes and devices come to the same decision.
    """
    modules = list(model.modules())
    if not any(isinstance(module, _CONVOLUTIONS) for module in modules):
        return False
    if any(isinstance(module, nn.GroupNorm) or "forward" in vars(module) for module in modules):
        return False
    if has_hooks(model):
        return False
    if not all(_is_known(model, training=training) for training in (True, False)):
        return False
    model.register_forward_pre_hook(lambda _, given: tuple(map(channels_last, given)))
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


def _is_known(model: nn.Module, *, training: bool) -> bool:
    """Return whether everything that a model does with images is known, until it flattens them."""
    try:
        # Tracing runs the model's code: on a copy, which shares the parameters alone.
        traced = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
        graph = fx.Tracer().trace(traced.train(training))
    except Exception:  # Its code depends on values or on shapes, or cannot be traced for another reason.
        return False
    images = set[fx.Node]()
    for node in graph.nodes:
        has_images = not images.isdisjoint(node.all_input_nodes)
        if node.op == "output":
            return not has_images
        if node.op == "placeholder":
            images.add(node)
        elif has_images and not _flattens(model, node):
            if not _keeps(model, node):
                return False
            images.add(node)
    return False


def _keeps(model: nn.Module, node: fx.Node) -> bool:
    """Return whether an operation is known to work on images in any memory format."""
    match node.op:
        case "call_module":
            return type(model.get_submodule(str(node.target))) in _LAYERS
        case "call_function":
            return node.target in _FUNCTIONS
        case _:
            return node.op == "call_method" and node.target in _METHODS


def _flattens(model: nn.Module, node: fx.Node) -> bool:
    """Return whether an operation makes one row of each image: the same one in any memory format."""
    if node.op == "call_module":
        layer = model.get_submodule(str(node.target))
        return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)
    is_flatten = node.target is torch.flatten or (node.op == "call_method" and node.target == "flatten")
    return is_flatten and (node.args[1:], dict(node.kwargs)) in (((1,), {}), ((), {"start_dim": 1}))
