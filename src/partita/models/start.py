"""Loading pretrained tensors into a model: names are mapped, and a report lists what was loaded."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from partita.params import Params
from partita.partition import Partition
from partita.partition.common import is_common
from partita.partition.tensors import tensors_of
from partita.sums import largest_of

_SHOWN = 3
"""Names listed for each reason."""


@runtime_checkable
class HasOtherNames(Protocol):
    """A model whose tensors have other names in common files of pretrained weights."""

    @property
    def other_names(self) -> Mapping[str, str]:
        """Regular expressions for those names, and their replacements."""
        ...


@dataclass(frozen=True)
class LoadReport:
    """The tensors of a file and of a model that were loaded, and those that were not."""

    loaded: Mapping[str, str]
    """The loaded tensors: the model's name, and the name in the file."""
    new: Mapping[str, str]
    """The model's tensors that keep their initial values, and why."""
    unused: Mapping[str, str]
    """The tensors of the file that were not loaded, and why."""
    converted: Sequence[str] = ()
    """The loaded tensors whose type is not that of the file."""

    def lines(self) -> list[str]:
        """Return three lines: about the loaded, the new and the unused tensors."""
        kinds = {"new": self.new, "unused": self.unused}
        return [f"{len(self.loaded)} loaded", *(f"{len(n)} {kind}{_reasons(n)}" for kind, n in kinds.items())]

    def __str__(self) -> str:
        return ", ".join(self.lines())


def load_start(model: nn.Module, tensors: Params, names: Mapping[str, str] | None = None) -> LoadReport:
    """Copy tensors into a model, in place, where names and shapes match, and report what was loaded.

    Args:
        model: the model.
        tensors: the tensors of a file, by name.
        names: regular expressions and their replacements, applied in order to the names in the file. A name
            that is still unknown to the model is mapped by the model's own `other_names`.

    Raises:
        ValueError: no tensor matches, or two tensors of the file match the same one of the model.
    """
    own, first_of = tensors_of(model), _first_names(model)
    loaded: dict[str, str] = {}
    unused: dict[str, str] = {}
    mismatches: dict[str, str] = {}
    for given, tensor in sorted(tensors.items()):
        name = _name_in(model, _renamed(given, names or {}))
        if name not in own:
            unused[given] = "no such name in the model"
            continue
        first = first_of[name]
        if is_common(own[name]):
            unused[given] = "the model has its own pretrained base"
            continue
        mismatch = _mismatch(tensor, own[name])
        if mismatch:
            mismatches[first] = unused[given] = mismatch
        elif first in loaded and not torch.equal(tensor, tensors[loaded[first]]):
            raise ValueError(f"`{loaded[first]}` and `{given}` of the file both match `{first}`.")
        else:
            loaded.setdefault(first, given)
    drawn = [name for name, tensor in own.items() if first_of[name] == name and not is_common(tensor)]
    new = {name: mismatches.get(name, "not in the file") for name in drawn}
    converted = [name for name, given in loaded.items() if tensors[given].dtype != own[name].dtype]
    report = LoadReport(loaded, {n: why for n, why in new.items() if n not in loaded}, unused, converted)
    if not loaded:
        raise ValueError(f"No tensor of the file matches {type(model).__name__}: {report}.")
    with torch.no_grad():
        for name, given in loaded.items():
            own[name].copy_(tensors[given])
    return report


def _name_in(model: nn.Module, name: str) -> str:
    """Return the model's name for a name in the file: itself, or mapped by the model's `other_names`."""
    other_names = model.other_names if isinstance(model, HasOtherNames) else {}
    if name in tensors_of(model) or not isinstance(other_names, Mapping):
        return name
    return _renamed(name, other_names)


def _mismatch(given: Tensor, own: Tensor) -> str:
    """Return why a tensor of the file cannot be loaded, an empty string if it can."""
    if given.shape != own.shape:
        return f"{_shape(given)} in the file, {_shape(own)} in the model"
    if given.is_floating_point() != own.is_floating_point() or given.is_complex():
        return f"{given.dtype} in the file, {own.dtype} in the model".replace("torch.", "")
    return "" if math.isfinite(largest_of(given.float())) else "not finite in the file"


def _first_names(model: nn.Module) -> dict[str, str]:
    """Return the first name of each of a model's tensors, by each of its names."""
    own = tensors_of(model)
    by_id = {id(own[name]): name for name in Partition(model, shared="*").names("shared")}
    return {name: by_id.get(id(tensor), name) for name, tensor in own.items()}


def _renamed(name: str, rules: Mapping[str, str]) -> str:
    for pattern, replacement in rules.items():
        try:
            name = re.sub(pattern, replacement, name)
        except (re.error, IndexError) as error:
            raise ValueError(f"{pattern!r} = {replacement!r} cannot rename {name!r}: {error}.") from None
    return name


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _reasons(names: Mapping[str, str]) -> str:
    """Return the first few names for each reason, in parentheses."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in names.items():
        by_reason.setdefault(reason, []).append(name)
    groups = [f"{_listed(group)}: {reason}" for reason, group in by_reason.items()]
    return f" ({'; '.join(groups)})" if groups else ""


def _listed(names: list[str]) -> str:
    more = ", ..." if len(names) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:_SHOWN]) + more
