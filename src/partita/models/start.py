"""Beginning from a file of pretrained tensors: names mapped, and an account of what became of each."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from partita.params import Params
from partita.partition import Partition, tensors_of

_SHOWN = 3


@runtime_checkable
class HasOtherNames(Protocol):
    """A model whose tensors have other names in files that people have of it."""

    @property
    def other_names(self) -> Mapping[str, str]:
        """Regular expressions for those names, and what they are here."""
        ...


@dataclass(frozen=True)
class Account:
    """What became of the tensors of a file and of a model that began from it."""

    loaded: Mapping[str, str]
    """The model's names, each with the name in the file that it was loaded from."""
    new: Mapping[str, str]
    """The model's names that keep their initial values, and why."""
    left_over: Mapping[str, str]
    """Names in the file that the model has no use for, and why."""

    def __str__(self) -> str:
        kinds = {"new": self.new, "left over": self.left_over}
        told = [f"{len(names)} {kind}{_some(names)}" for kind, names in kinds.items()]
        return f"{len(self.loaded)} tensors loaded, {told[0]}, {told[1]}"


def load_start(model: nn.Module, tensors: Params, names: Mapping[str, str] | None = None) -> Account:
    """Copy tensors into a model where name and shape are its own, in place, and return what became of each.

    Args:
        model: the model to begin.
        tensors: a file's tensors by name.
        names: regular expressions to replace in the file's names, one after the other, and by what; the
            model's own `other_names` come after them.

    Raises:
        ValueError: nothing fits, or two tensors of the file would be the same one of the model.
    """
    own_names = model.other_names if isinstance(model, HasOtherNames) else {}
    rules = [*(names or {}).items(), *own_names.items()]
    own, first_of = tensors_of(model), _first_names(model)
    loaded: dict[str, str] = {}
    left_over: dict[str, str] = {}
    misfits: dict[str, str] = {}
    for given, tensor in tensors.items():
        name = _renamed(given, rules)
        if name not in own:
            left_over[given] = "no such name in the model"
            continue
        first = first_of[name]
        if own[name].shape != tensor.shape:
            misfits[first] = left_over[given] = f"{_shape(tensor)} in the file, {_shape(own[name])} here"
        elif not torch.equal(tensor, tensors[loaded.setdefault(first, given)]):
            raise ValueError(f"`{loaded[first]}` and `{given}` of the file would both be `{first}`.")
    if not loaded:
        raise ValueError(
            f"No tensor of the file fits {type(model).__name__}: the file has {_listed(tensors)}, the model "
            f"{_listed(own)}."
        )
    with torch.no_grad():
        for name, given in loaded.items():
            own[name].copy_(tensors[given])
    new = {name: misfits.get(name, "not in the file") for name in own if first_of[name] not in loaded}
    return Account(loaded, new, left_over)


def _first_names(model: nn.Module) -> dict[str, str]:
    """Return the first name of every tensor of a model, by any of its names."""
    own = tensors_of(model)
    by_id = {id(own[name]): name for name in Partition(model).names("shared")}
    return {name: by_id.get(id(tensor), name) for name, tensor in own.items()}


def _renamed(name: str, rules: list[tuple[str, str]]) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"


def _some(names: Mapping[str, str]) -> str:
    """Return the first names of each reason, in brackets."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in names.items():
        by_reason.setdefault(reason, []).append(name)
    told = [f"{_listed(group)}: {reason}" for reason, group in by_reason.items()]
    return f" ({'; '.join(told)})" if told else ""


def _listed(names: Mapping[str, object] | list[str]) -> str:
    more = ", ..." if len(names) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in list(names)[:_SHOWN]) + more
