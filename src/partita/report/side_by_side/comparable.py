"""Checks and sentences about what can be compared between runs and comparisons."""

from collections.abc import Sequence
from typing import Any

from partita.config.overrides import TABLE
from partita.config.recording import is_from_python
from partita.errors import ConfigError
from partita.report.side_by_side.sources import Source

_SAME_ROWS = frozenset(("task.metrics", "task.validation"))
"""Settings of a task that leave its test rows as they are."""
_WEIGHTS = "examples of devices"


def check_same(first: Source, other: Source) -> None:
    """Raise if two sources do not measure the same."""
    measured = [(source.split, source.metric, source.direction) for source in (first, other)]
    if measured[0] != measured[1]:
        said = [
            f"`{source.folder.path}` has {source.split} {source.metric} ({better(source)} is better)"
            for source in (first, other)
        ]
        raise ConfigError(f"{said[0]} and {said[1]}: side by side, both must be the same.")


def better(source: Source) -> str:
    """Return whether a higher or a lower metric is better."""
    return "higher" if source.direction == "up" else "lower"


def has_other_data(first: Source, other: Source) -> bool:
    """Return whether two sources have different data.

    A table is identified by its digest; without one, all settings of the task must be the same. In any case
    the devices that both have must have the same weights, which are those of their rows.
    """
    differing = set(_differing(first, other)) - _SAME_ROWS
    has_same_table = TABLE in first.data and not differing & {TABLE, "task.kind", _WEIGHTS}
    return bool(differing) and not has_same_table


def _differing(first: Source, other: Source) -> list[str]:
    """Return the keys of the task's settings that differ, and whether the weights of devices do."""
    keys = sorted({*first.data, *other.data})
    settings = [key for key in keys if first.data.get(key) != other.data.get(key)]
    weights, others = first.reference.weights, other.reference.weights
    same = all(weights[device] == others[device] for device in weights.keys() & others.keys())
    return settings if same else [*settings, _WEIGHTS]


def other_data(sources: Sequence[Source]) -> list[str]:
    """Return a sentence about each source with other data than the first."""
    first = sources[0]
    return [
        f"{other.name} and {first.name} have different data ({', '.join(_differing(first, other))}): they "
        "are not comparable device by device, and a difference of their means may be one of the data."
        for other in sources[1:]
        if has_other_data(first, other)
    ]


def unshared(sources: Sequence[Source]) -> list[str]:
    """Return sentences about settings, devices and seeds that sources with the same data do not share."""
    first, found = sources[0], list[str]()
    if any(is_from_python(source.folder.values) for source in sources):
        found.append("The data of a run from Python are not recorded: equal ids are taken for one device.")
    for other in sources[1:]:
        if has_other_data(first, other):
            continue
        if keys := _differing(first, other):
            found.append(f"{first.name} and {other.name} differ in {', '.join(keys)}.")
        found += _unshared(first, other, "devices", first.reference.devices, other.reference.devices)
        found += _unshared(first, other, "seeds", first.seeds, other.seeds)
    return found


def _unshared(first: Source, other: Source, what: str, *found: frozenset[Any]) -> list[str]:
    """Return a sentence about devices or seeds that two sources do not have in common, if there are any."""
    if found[0] == found[1]:
        return []
    counts = [len(each) for each in (*found, found[0] & found[1])]
    paired = "paired differences are over those in common" if counts[2] else "no difference can be paired"
    return [
        f"{first.name} and {other.name} have different {what} ({counts[0]:,} and {counts[1]:,}, "
        f"{counts[2]:,} in common): means are over all of their own, and {paired}."
    ]
