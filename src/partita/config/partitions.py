"""From a config's `[partition]` to the split of a model."""

from glob import escape
from typing import cast

from torch import nn

from partita.config.loading import load
from partita.config.schema import PartitionConfig
from partita.config.sections import create, in_section
from partita.models.adapters import Adapters, Width, shared_adapters
from partita.models.parts import named_partition, named_patterns, parts_of, selected_partition
from partita.partition import Personalization, Regularization
from partita.partition.selection import REST, Selection


def build_partition(config: PartitionConfig, model: nn.Module, *, follows: bool = False) -> Personalization:
    """Return how the config splits a model.

    Args:
        config: the section.
        model: the model to split.
        follows: with `full`, whether each visit starts from the shared model, see `named_partition`.
    """
    with in_section("partition"):
        width = _width(config)
        if isinstance(config.shared, str) and isinstance(
            where := parts_of(model).get(config.shared), Adapters
        ):
            return _shared_adapters(config, model, where, width)
        others = {
            "shared": _selection(config.shared, model),
            "frozen": _selection(config.frozen, model),
            "untie": config.untie,
        }
        regularization = create(Regularization, config)
        common = {"regularization": regularization, "width": width, **others}
        if isinstance(config.personal, str) and config.personal != REST:
            settings = {"proximal": config.proximal, "follows": follows}
            return named_partition(model, config.personal, **settings, **common)
        return selected_partition(model, _selection(config.personal, model), **common)


def _width(config: PartitionConfig) -> Width:
    """Return the width of adapters, a function where the config has an import path."""
    width = config.adapter_width
    if isinstance(width, str):
        width = cast(Width, load("partition.adapter_width", width, {}))
        if not callable(width):
            raise ValueError(f"`adapter_width` must be a function of a device's id, got {width!r}.")
    return width


def _shared_adapters(
    config: PartitionConfig, model: nn.Module, where: Adapters, width: Width
) -> Personalization:
    if config.personal not in ("none", []):
        raise ValueError(
            f"`shared` = {config.shared!r} adds modules that all devices train, which needs `personal` = "
            f"'none', got {config.personal!r}."
        )
    frozen = _selection(config.frozen, model)
    return shared_adapters(model, where, width=width, largest=config.largest_width, frozen=frozen)


def frozen_patterns(config: PartitionConfig, model: nn.Module) -> str | list[str]:
    """Return `frozen` as another partition of the same model selects it: names instead of the rest."""
    if config.frozen != REST:
        return config.frozen
    return [escape(name) for name in sorted(build_partition(config, model).partition.frozen_before.always)]


def _selection(value: str | list[str], model: nn.Module) -> Selection:
    return named_patterns(model, value) if isinstance(value, str) and value != REST else value
