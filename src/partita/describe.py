"""What each partition of a config's model makes personal, shared and frozen."""

from pathlib import Path

from partita.config.building import build_partition, build_task, section
from partita.config.imports import import_from
from partita.config.schema import Config
from partita.models.parts import named_partition, partition_names
from partita.partition import PARTS
from partita.tasks.build import build_model


def describe(config: Config, beside: Path) -> dict[str, dict[str, int]]:
    """Return the number of parameters in each part, for every named partition and the config's own."""
    import_from(str(Path.cwd()), str(beside))
    model = build_model(build_task(config, beside), seed=config.seed)
    with section("partition"):
        own = build_partition(config.partition, model)
    partitions = {name: named_partition(model, name) for name in partition_names(model)}
    chosen = config.partition.personal
    partitions[chosen if isinstance(chosen, str) else ", ".join(chosen)] = own
    return {name: {part: partition.count(part) for part in PARTS} for name, partition in partitions.items()}
