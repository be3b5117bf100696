"""The number of classes in a table, derived from the labels of all seen devices."""

import json

import pyarrow as pa
import pyarrow.compute as pc

from partita.data.arrow import id_strings
from partita.data.table import DeviceTable
from partita.data.unseen import are_seen
from partita.errors import ConfigError
from partita.protocol import DeviceId

_MAX_CLASSES = 1_000_000
"""The maximum number of classes inferred from labels."""


def count_classes(source: DeviceTable, column: str) -> int:
    """Return the number of classes in a column of labels: one more than the largest label.

    Raises:
        ConfigError: a label is not a whole number or too large, or only unseen devices have it.
    """
    kind = source.groups.schema.field(column).type
    if not pa.types.is_integer(kind):
        raise ConfigError(f"`{column}` of `{source.path}` must be whole numbers, got {kind}.")
    seen, unseen = _largest(source, column)
    largest = max(seen, unseen)
    if largest >= _MAX_CLASSES or (largest > seen and not source.options.skip_bad):
        row, device = _find(source, column, largest)
        message = f"`{column}` is {largest}: set `classes` to the number of classes"
        if largest < _MAX_CLASSES:
            message = f"`{column}` is {largest}, which no device in training has: set `classes`"
        raise source.error(row, message, device)
    return seen + 1


def class_names(source: DeviceTable, column: str, classes: int) -> list[str]:
    """Return the names of the classes in a column, as `datasets` writes them; none where there are none."""
    try:
        about = json.loads((source.groups.schema.metadata or {}).get(b"huggingface", b"{}"))
        names = about["info"]["features"][column]["names"]
    except (ValueError, KeyError, TypeError):
        return []
    is_whole = isinstance(names, list) and len(names) == classes and all(isinstance(n, str) for n in names)
    return names if is_whole else []


def _largest(source: DeviceTable, column: str) -> tuple[int, int]:
    """Return the largest value in a column of seen devices and of unseen ones, selected or not."""
    found, device = {True: 0, False: 0}, source.options.device
    for rows in source.groups.tables([device, column] if source.unseen else [column]):
        parts = {True: rows}
        if source.unseen:
            ids = id_strings(rows[device], device).dictionary_encode()
            is_seen = are_seen(ids.dictionary, source.unseen)[ids.indices.to_numpy()]
            parts = {True: rows.filter(pa.array(is_seen)), False: rows.filter(pa.array(~is_seen))}
        for seen, part in parts.items():
            largest = pc.call_function("max", [part[column]]).as_py()
            found[seen] = max(found[seen], int(largest or 0))
    return found[True], found[False]


def _find(source: DeviceTable, column: str, value: int) -> tuple[int, DeviceId]:
    """Return the first row with an existing value, and its device."""
    first, device = 0, source.options.device
    for rows in source.groups.tables([device, column]):
        row = pc.index(rows[column], pa.scalar(value, rows[column].type)).as_py()
        if row >= 0:
            return first + row, id_strings(rows[device], device)[row].as_py()
        first += len(rows)
    raise AssertionError("The value was found before.")
