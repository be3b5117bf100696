"""Partitions by name: what a model calls its input, output and adapters, all of it, or nothing of it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import nn

from partita.models.adapters import Adapters, Width, adapters, patterns
from partita.models.full import full
from partita.partition import Partition
from partita.selection import REST


@runtime_checkable
class NamesParts(Protocol):
    """A model that names parts of itself: by patterns of tensors, or by where it takes adapters."""

    @property
    def parts(self) -> Mapping[str, str | Sequence[str] | Adapters]:
        """Its parts by name: `input`, `output`, `adapter`, whatever it has."""
        ...


def named_partition(
    model: nn.Module, name: str, *, proximal: float = 0.1, width: Width = 0, **others: Any
) -> Partition:
    """Return the partition `none`, `full`, or one that the model names itself.

    Args:
        model: the model to split.
        name: one of `partition_names(model)`.
        proximal: the pull of `full`.
        width: of adapters.
        others: further arguments of `Partition`, such as `frozen`.
    """
    if name == "none":
        return Partition(model, **others)
    if name == "full":
        if others.get("shared", REST) is not REST or others.get("frozen"):
            raise ValueError("The partition `full` takes no `shared` and no `frozen`.")
        return full(model, proximal=proximal, dropout=others.get("dropout", 0.0))
    parts = _parts_of(model)
    if name not in parts:
        raise ValueError(
            f"{type(model).__name__} names no part {name!r}. Known: {', '.join(partition_names(model))}; "
            "or a list of patterns, such as ['head.*']."
        )
    part = parts[name]
    if isinstance(part, Adapters):
        return adapters(model, part, width=width, **others)
    return Partition(model, personal=patterns(part), **others)


def partition_names(model: nn.Module) -> list[str]:
    """Return the names that `named_partition` takes for a model."""
    return list(dict.fromkeys(["none", *_parts_of(model), "full"]))


def _parts_of(model: nn.Module) -> Mapping[str, str | Sequence[str] | Adapters]:
    return model.parts if isinstance(model, NamesParts) and isinstance(model.parts, Mapping) else {}
