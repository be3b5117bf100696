"""Partitions by name: what a model calls its input, output and adapters, all of it, or nothing of it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import nn

from partita.models.adapters import Adapters, Width, adapters, patterns
from partita.models.full import full
from partita.partition import Partition
from partita.partition.selection import REST

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)  # noqa: SLF001


@runtime_checkable
class NamesParts(Protocol):
    """A model that names parts of itself: by patterns of tensors, or by where it takes adapters."""

    @property
    def parts(self) -> Mapping[str, str | Sequence[str] | Adapters]:
        """Its parts by name: `input`, `output`, `adapter`, whatever it has."""
        ...


def named_partition(
    model: nn.Module,
    name: str,
    *,
    proximal: float = 0.1,
    follows: bool = False,
    width: Width = 0,
    **others: Any,
) -> Partition:
    """Return the partition `none`, `norm`, `full`, or one that the model names itself.

    Args:
        model: the model to split.
        name: one of `partition_names(model)`.
        proximal: the pull of `full`.
        follows: whether devices that have kept no model of `full` begin with the shared one of the moment.
        width: of adapters.
        others: further arguments of `Partition`, such as `frozen`.
    """
    if name == "none":
        return Partition(model, **others)
    if name == "full":
        if others.get("shared", REST) is not REST or others.get("frozen"):
            raise ValueError("The partition `full` takes no `shared` and no `frozen`.")
        regularization = {key: others[key] for key in ("dropout", "l2", "l2_to") if key in others}
        return full(model, proximal=proximal, follows=follows, **regularization)
    part = _part_of(model, name)
    if isinstance(part, Adapters):
        return adapters(model, part, width=width, **others)
    return Partition(model, personal=part, **others)


def named_patterns(model: nn.Module, name: str) -> list[str]:
    """Return the patterns of a part that the model names, or of its norms."""
    part = _part_of(model, name)
    if isinstance(part, Adapters):
        raise ValueError(f"The part {name!r} is added to the model: only `personal` takes it.")
    return part


def partition_names(model: nn.Module) -> list[str]:
    """Return the names that `named_partition` takes for a model."""
    return list(dict.fromkeys(["none", *_parts_of(model), "full"]))


def _part_of(model: nn.Module, name: str) -> list[str] | Adapters:
    parts = _parts_of(model)
    if name == "norm" and name not in parts:
        return _norms(model)
    if name not in parts:
        raise ValueError(
            f"{type(model).__name__} names no part {name!r}. Known: {', '.join(partition_names(model))}, "
            "norm; or a list of patterns, such as ['head.*']."
        )
    part = parts[name]
    return part if isinstance(part, Adapters) else list(patterns(part))


def _norms(model: nn.Module) -> list[str]:
    """Return patterns of all that the layers of a model that norm hold: FedBN's part."""
    # Under all its names where it is in two places; a norm without weights and statistics holds nothing.
    modules = model.named_modules(remove_duplicate=False)
    found = [name for name, module in modules if isinstance(module, _NORMS) and module.state_dict()]
    if not found:
        raise ValueError(f"{type(model).__name__} has no layers that norm, such as BatchNorm or GroupNorm.")
    return [f"{name}.*" for name in found]


def _parts_of(model: nn.Module) -> Mapping[str, str | Sequence[str] | Adapters]:
    return model.parts if isinstance(model, NamesParts) and isinstance(model.parts, Mapping) else {}
