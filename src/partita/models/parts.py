"""Partitions by name: the parts that a model names, `norm`, `second_head`, `full` and `none`.

`input`, `output` and `adapter` are the personal parts of the paper. `head` is the last layer, which computes
the scores of the classes or the outputs; the paper's output part may be another one. `second_head` adds a
head beside it, of each device's own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import nn

from partita.errors import did_you_mean
from partita.models.adapters import Adapters, Resizable, Width, adapters, patterns, resized
from partita.models.full import full
from partita.models.heads import second_head
from partita.partition import REST, Partition, Personalization, Regularization, Selection

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)  # noqa: SLF001


@runtime_checkable
class NamesParts(Protocol):
    """A model that names its parts, by patterns of tensors or by places for adapters."""

    @property
    def parts(self) -> Mapping[str, str | Sequence[str] | Adapters | Resizable]:
        """The parts by name, such as `input`, `output`, `head` and `adapter`."""
        ...


def named_partition(
    model: nn.Module,
    name: str,
    *,
    proximal: float = 0.1,
    follows: bool = False,
    width: Width = 0,
    regularization: Regularization | None = None,
    **others: Any,
) -> Personalization:
    """Return the personalization for a name: `none`, `norm`, `second_head`, `full`, or a part of the model.

    A name with a dot or a star that is none of these is a pattern of tensors, such as `head.*`.

    Args:
        model: the model to split.
        name: one of `partition_names(model)`, `norm`, `second_head`, or a pattern.
        proximal: with `full`, strength of the pull toward the shared model.
        follows: with `full`, whether a device that has kept no model starts from the current shared one.
        width: with adapters, their bottleneck width; of a model with LoRA, its rank, where it is not the
            model's, whatever part it is in.
        regularization: dropout and L2 penalty on the personal part.
        others: further arguments of `Partition`, such as `frozen`.
    """
    if name == "full":
        if others.get("shared", REST) != REST:
            raise ValueError("The partition `full` takes no `shared`: it shares all that is not frozen.")
        frozen = others.get("frozen", ())
        return full(model, proximal=proximal, follows=follows, frozen=frozen, regularization=regularization)
    if name == "second_head" and name not in parts_of(model):
        return second_head(model, parts_of(model), regularization=regularization, **others)
    part = [] if name == "none" else _part_of(model, name)
    if isinstance(part, Adapters):
        return adapters(model, part, width=width, regularization=regularization, **others)
    personal = list(part.patterns) if isinstance(part, Resizable) else part
    return selected_partition(model, personal, width=width, regularization=regularization, **others)


def selected_partition(
    model: nn.Module,
    personal: Selection,
    *,
    width: Width = 0,
    regularization: Regularization | None = None,
    **others: Any,
) -> Personalization:
    """Return the personalization for a selection of tensors; the other arguments are as for a name."""
    own = next((part for part in parts_of(model).values() if isinstance(part, Resizable)), None)
    if own is not None:
        given = {"regularization": regularization, "personal": personal, **others}
        return resized(model, own, width=width, **given)
    partition = Partition(model, personal=personal, **others)
    return Personalization(partition, regularization=regularization or Regularization())


def named_patterns(model: nn.Module, name: str) -> list[str]:
    """Return the patterns of a part that the model names or of its normalization layers, or a pattern."""
    part = _part_of(model, name)
    if isinstance(part, Adapters):
        raise ValueError(f"The part {name!r} adds modules to the model: it can only be `personal`.")
    return list(part.patterns) if isinstance(part, Resizable) else part


def partition_names(model: nn.Module) -> list[str]:
    """Return the names that `named_partition` takes for a model."""
    return list(dict.fromkeys(["none", *parts_of(model), "full"]))


def _part_of(model: nn.Module, name: str) -> list[str] | Adapters | Resizable:
    parts = parts_of(model)
    if name == "norm" and name not in parts:
        return _norms(model)
    if name not in parts and ("." in name or "*" in name):
        return [name]
    if name not in parts:
        missing = f"{type(model).__name__} names no part {name!r}"
        names = [*partition_names(model), "norm"]
        known = f"Known: {', '.join(names)}"
        if name == "head":
            raise ValueError(
                f"{missing}, its output layer: add it to `parts` of the model, such as "
                f"parts = {{'head': ['fc.*']}}. {known}."
            )
        raise ValueError(f"{missing}.{did_you_mean(name, names)} {known}; or patterns, such as 'head.*'.")
    part = parts[name]
    return part if isinstance(part, Adapters | Resizable) else list(patterns(part))


def _norms(model: nn.Module) -> list[str]:
    """Return the patterns of all normalization layers that have parameters or statistics."""
    # A module in two places is listed under both names.
    modules = model.named_modules(remove_duplicate=False)
    found = [name for name, module in modules if isinstance(module, _NORMS) and module.state_dict()]
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no normalization layers, such as BatchNorm or GroupNorm."
        )
    return [f"{name}.*" for name in found]


def parts_of(model: nn.Module) -> Mapping[str, str | Sequence[str] | Adapters | Resizable]:
    """Return the parts that a model names, none where it names none."""
    return model.parts if isinstance(model, NamesParts) and isinstance(model.parts, Mapping) else {}
