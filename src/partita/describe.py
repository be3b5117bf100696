"""What each partition of a config's model makes personal, shared and frozen."""

from pathlib import Path
from typing import Any

from torch import nn

from partita.config.building import build_partition, build_task, section
from partita.config.imports import find_code, own_code
from partita.config.schema import Config
from partita.models.parts import named_partition, partition_names
from partita.partition import Partition
from partita.tasks.build import build_model


def describe(config: Config, beside: Path) -> dict[str, dict[str, Any]]:
    """Return the number of parameters in each part, for every named partition and the config's own.

    A named partition that cannot be made of this model has an `error` instead.
    """
    find_code(config, beside)
    task = build_task(config, beside)
    with own_code("The model"):
        model = build_model(task, seed=config.seed)
    partitions = {name: _counts(model, name) for name in partition_names(model)}
    with section("partition"):
        own = build_partition(config.partition, model)
    chosen = config.partition.personal
    partitions[chosen if isinstance(chosen, str) else ", ".join(chosen)] = _counts_of(own)
    return partitions


def _counts(model: nn.Module, name: str) -> dict[str, Any]:
    try:
        return _counts_of(named_partition(model, name))
    except ValueError as error:
        return {"error": str(error)}


def _counts_of(partition: Partition) -> dict[str, Any]:
    return {part: partition.count(part) for part in ("personal", "shared", "frozen")}
