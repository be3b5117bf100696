"""Checks and sentences about what can be compared between runs and comparisons."""

from collections.abc import Sequence

from partita.config.overrides import TABLE
from partita.config.recording import has_task_from_python
from partita.errors import ConfigError
from partita.report.side_by_side.sources import Source

_SAME_TEST_ROWS = frozenset((
    *("metrics", "validation", "max_examples", "min_train_examples", "min_test_examples", "devices", "sort"),
    *("size", "channels", "crop_from", "flip", "mean", "std"),
    *("columns", "standardize"),
    *("tokens", "features"),
))  # fmt: skip
"""Settings of a task on a table that change neither a device's test rows nor their labels: of all tasks, of
images, of numeric columns, and of speech. All others do, such as the columns of labels and devices."""
_WITHOUT_TABLE = frozenset(("metrics", "validation"))
"""Those of a task without a table: only some settings mean the same in all tasks."""
_VALIDATION = "validation"
"""The split that a run may report on instead of the test rows, and the setting that changes its rows."""
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


def differing_data(first: Source, other: Source) -> list[str]:
    """Return the keys that show that two sources have different data, none if they have the same.

    A table is identified by its digest. Settings that leave test rows and labels as they are do not count. In
    any case the devices that both have must have the same weights, which are those of their rows.
    """
    harmless = _SAME_TEST_ROWS if TABLE in first.data and TABLE in other.data else _WITHOUT_TABLE
    if first.split == _VALIDATION:
        harmless -= {_VALIDATION}
    keys = [key for key in sorted({*first.data, *other.data}) if first.data.get(key) != other.data.get(key)]
    found = [key for key in keys if key.removeprefix("task.") not in harmless]
    weights, others = first.reference.weights, other.reference.weights
    same = all(weights[device] == others[device] for device in weights.keys() & others.keys())
    return found if same else [*found, _WEIGHTS]


def other_data(sources: Sequence[Source]) -> list[str]:
    """Return a sentence about each source with other data than the first."""
    first = sources[0]
    return [
        f"{other.name} and {first.name} have different data ({', '.join(keys)}): they "
        "are not comparable device by device, and a difference of their means may be one of the data."
        for other in sources[1:]
        if (keys := differing_data(first, other))
    ]


def unrecorded_data(sources: Sequence[Source]) -> list[str]:
    """Return a sentence if the data of a source are not recorded."""
    if not any(has_task_from_python(source.folder.values) for source in sources):
        return []
    return ["The data of a task from Python are not recorded: equal ids are taken for one device."]
