"""Partitions by name: what a model calls its input and its output, all of it, or nothing of it."""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from partita.partition import Partition


@runtime_checkable
class NamesParts(Protocol):
    """A model that names parts of itself by patterns: `input`, `output`, whatever it has."""

    parts: Mapping[str, Sequence[str]]


class Full(nn.Module):
    """A whole model for the device (`personal`) beside the one that all share (`shared`).

    The forward pass uses the device's; what the two have to do with each other is in the penalty.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.shared = copy.deepcopy(model)
        self.personal = model

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Return the output of the device's model."""
        return self.personal(*inputs, **options)

    def __getattr__(self, name: str) -> Any:
        """Find what the model itself would have, so that a loss may use it."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("personal"), name)


def proximity(model: nn.Module, *, strength: float) -> Tensor:
    """Return (strength / 2) ||personal - shared||^2 of a `Full` model."""
    shared = dict(model.get_submodule("shared").named_parameters())
    squares = [
        (own - shared[name]).square().sum()
        for name, own in model.get_submodule("personal").named_parameters()
    ]
    return 0.5 * strength * sum(squares[1:], squares[0])


def full(model: nn.Module, *, proximal: float = 0.1) -> Partition:
    """Return the partition that gives each device a whole model, pulled towards the shared one.

    It minimises the average over devices of F_i(v_i) + (proximal / 2) ||v_i - u||^2.
    """
    if not 0 <= proximal < float("inf"):
        raise ValueError(f"`proximal` must be a finite number, 0 or above, got {proximal!r}.")
    return Partition(
        model,
        personal="personal.*",
        shared="shared.*",
        prepare=Full,
        penalty=partial(proximity, strength=proximal) if proximal else None,
    )


def named_partition(model: nn.Module, name: str, *, proximal: float = 0.1, **others: Any) -> Partition:
    """Return the partition `none`, `full`, or one that the model names itself.

    Args:
        model: the model to split.
        name: one of `partition_names(model)`.
        proximal: the pull of `full`.
        others: further arguments of `Partition`, such as `frozen`.
    """
    if name == "none":
        return Partition(model, **others)
    if name == "full":
        return full(model, proximal=proximal)
    parts = _parts_of(model)
    if name not in parts:
        raise ValueError(
            f"{type(model).__name__} names no part {name!r}. Known: {', '.join(partition_names(model))}; "
            "or a list of patterns, such as ['head.*']."
        )
    return Partition(model, personal=list(parts[name]), **others)


def partition_names(model: nn.Module) -> list[str]:
    """Return the names that `named_partition` takes for a model."""
    return ["none", *_parts_of(model), "full"]


def _parts_of(model: nn.Module) -> Mapping[str, Sequence[str]]:
    return model.parts if isinstance(model, NamesParts) and isinstance(model.parts, Mapping) else {}
