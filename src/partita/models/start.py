"""Beginning from a file of pretrained tensors: names mapped, and an account of what became of each."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from partita.params import Params, largest_of
from partita.partition import Partition
from partita.partition.selection import tensors_of

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

    def lines(self) -> list[str]:
        """Return what was loaded, what is new and what was left over, a line each."""
        kinds = {"new": self.new, "left over": self.left_over}
        return [f"{len(self.loaded)} loaded", *(f"{len(n)} {kind}{_some(n)}" for kind, n in kinds.items())]

    def __str__(self) -> str:
        return ", ".join(self.lines())


def load_start(model: nn.Module, tensors: Params, names: Mapping[str, str] | None = None) -> Account:
    """Copy tensors into a model where name and shape are its own, in place, and return what became of each.

    Args:
        model: the model to begin.
        tensors: a file's tensors by name.
        names: regular expressions to replace in the file's names, one after the other, and by what; names
            that are not the model's after that are looked for by its own `other_names`.

    Raises:
        ValueError: nothing fits, or two tensors of the file would be the same one of the model.
    """
    own, first_of = tensors_of(model), _first_names(model)
    loaded: dict[str, str] = {}
    left_over: dict[str, str] = {}
    misfits: dict[str, str] = {}
    for given, tensor in sorted(tensors.items()):
        name = _name_in(model, _renamed(given, names or {}))
        if name not in own:
            left_over[given] = "no such name in the model"
            continue
        first = first_of[name]
        misfit = _misfit(tensor, own[name])
        if misfit:
            misfits[first] = left_over[given] = misfit
        elif first in loaded and not torch.equal(tensor, tensors[loaded[first]]):
            raise ValueError(f"`{loaded[first]}` and `{given}` of the file would both be `{first}`.")
        else:
            loaded.setdefault(first, given)
    new = {name: misfits.get(name, "not in the file") for name in own if first_of[name] == name}
    account = Account(loaded, {n: why for n, why in new.items() if n not in loaded}, left_over)
    if not loaded:
        raise ValueError(f"No tensor of the file fits {type(model).__name__}: {account}.")
    with torch.no_grad():
        for name, given in loaded.items():
            own[name].copy_(tensors[given])
    return account


def _name_in(model: nn.Module, name: str) -> str:
    """Return a name of the model: this one where it is, else what the model calls it elsewhere."""
    other_names = model.other_names if isinstance(model, HasOtherNames) else {}
    if name in tensors_of(model) or not isinstance(other_names, Mapping):
        return name
    return _renamed(name, other_names)


def _misfit(given: Tensor, own: Tensor) -> str:
    """Return why a tensor of the file cannot be one of the model, nothing where it can."""
    if given.shape != own.shape:
        return f"{_shape(given)} in the file, {_shape(own)} here"
    if given.is_floating_point() != own.is_floating_point() or given.is_complex():
        return f"{given.dtype} in the file, {own.dtype} here".replace("torch.", "")
    return "" if math.isfinite(largest_of(given.float())) else "not finite in the file"


def _first_names(model: nn.Module) -> dict[str, str]:
    """Return the first name of every tensor of a model, by any of its names."""
    own = tensors_of(model)
    by_id = {id(own[name]): name for name in Partition(model).names("shared")}
    return {name: by_id.get(id(tensor), name) for name, tensor in own.items()}


def _renamed(name: str, rules: Mapping[str, str]) -> str:
    for pattern, replacement in rules.items():
        try:
            name = re.sub(pattern, replacement, name)
        except (re.error, IndexError) as error:
            raise ValueError(f"{pattern!r} = {replacement!r} cannot rename {name!r}: {error}.") from None
    return name


def _shape(tensor: Tensor) -> str:
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
