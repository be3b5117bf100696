"""Tied tensors: one tensor under several names, and how to give the names their own copies."""

import copy
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from partita.errors import ConfigError
from partita.params import Params
from partita.partition.common import common_names, is_common
from partita.partition.tensors import tensors_of


def find_ties(state: Params) -> dict[str, str]:
    """Return, for every tensor that shares memory with an earlier one, the first name of that memory."""
    ties: dict[str, str] = {}
    seen: list[tuple[int, int, str]] = []
    for name, tensor in state.items():
        if not tensor.numel():
            continue
        begin = tensor.data_ptr()
        reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        end = begin + (reach + 1) * tensor.element_size()
        first = next((other for low, high, other in seen if begin < high and low < end), None)
        if first is None:
            seen.append((begin, end, name))
        else:
            ties[name] = first
    return ties


def is_same_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same memory from end to end."""
    return one.data_ptr() == other.data_ptr() and one.numel() == other.numel()


def untie(model: nn.Module, heads: Mapping[str, str]) -> None:
    """Give tied tensors their own copies, in place.

    Args:
        model: the model.
        heads: the name of each tensor that leaves its tie, with the first name of its own copy.
    """
    for name, head in heads.items():
        module, attribute = owner_of(model, name)
        tensor = getattr(module, attribute)
        setattr(module, attribute, copy.deepcopy(tensor) if name == head else tensors_of(model)[head])


def own_common(model: nn.Module, names: Collection[str]) -> None:
    """Give a model its own copies of the common tensors among some names, in place; ties stay."""
    state, first_of = tensors_of(model), dict[int, str]()
    chosen = [name for name in state if name in names and is_common(state[name])]
    untie(model, {name: first_of.setdefault(id(state[name]), name) for name in chosen})


def owner_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the module that owns a tensor and the tensor's attribute; copies shared modules, in place.

    A module on the path that stands in two places of the model is copied in this one, with all its tensors
    still shared, so that a tensor can be replaced here alone.
    """
    *path, attribute = name.split(".")
    module = model
    for place in path:
        child = module.get_submodule(place)
        if sum(other is child for _, other in model.named_modules(remove_duplicate=False)) > 1:
            child = copy.copy(child)
            for slot, registry in vars(child).items():
                if slot.startswith("_") and isinstance(registry, dict | set):
                    vars(child)[slot] = registry.copy()
            setattr(module, place, child)
        module = child
    return module, attribute


def move(model: nn.Module, accelerator: torch.device) -> None:
    """Move a model to an accelerator, in place; names of one tensor stay names of one tensor.

    Raises:
        ConfigError: two tensors share memory, which they could not do there.
    """
    own_common(model, common_names(model))
    before = tensors_of(model)
    ties = find_ties(before)
    model.to(accelerator)
    for name, first in ties.items():
        if before[name] is not before[first]:
            raise ConfigError(
                f"`{first}` and `{name}` are two tensors in the same memory, which is lost on {accelerator}: "
                "let both names be one parameter, or train on 'cpu'."
            )
        after = tensors_of(model)
        if after[name] is not after[first]:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, after[first])
