"""The numeric columns of a table: their names, and their mean and standard deviation."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from partita.data.files import open_files
from partita.data.options import TableOptions
from partita.errors import ConfigError

logger = logging.getLogger(__name__)

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that can be used."""
_NUMERIC = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)


def numeric_columns(path: Path, options: TableOptions, *, label: str) -> list[str]:
    """Return the numeric columns of a table, without the label and the columns with a role in `options`."""
    roles = {options.device, options.split, options.id, options.group, options.time} - {""}
    excluded = {label, "split", "id", "group", "time"} | roles
    others = [field for field in open_files(path).schema if field.name not in excluded]
    numeric = [field.name for field in others if _is_numeric(field)]
    if not numeric:
        raise ConfigError(f"`{path}` has no numeric column besides {', '.join(sorted(excluded))}.")
    if ignored := [f"`{field.name}` ({field.type})" for field in others if field.name not in numeric]:
        logger.warning("Columns of `%s` that are not numeric are ignored: %s.", path, ", ".join(ignored))
    return numeric


def _is_numeric(field: pa.Field) -> bool:
    return any(is_kind(field.type) for is_kind in _NUMERIC)


def mean_and_std(tables: Iterable[pa.Table], columns: Sequence[str]) -> dict[str, list[float]]:
    """Return `mean` and `std`, the standard deviation, of each column over all rows that are complete.

    A constant column has a standard deviation of 1, so that dividing by it leaves the column at 0.

    Args:
        tables: the rows, many at a time.
        columns: the names of the columns.

    Raises:
        ConfigError: a column is not numeric, or no row is complete.
    """
    rows, mean, squares = 0, np.zeros(len(columns)), np.zeros(len(columns))
    low, high = np.full(len(columns), np.inf), np.full(len(columns), -np.inf)
    for table in tables:
        values = _complete_rows(table, columns)
        if not len(values):
            continue
        # Chan's formula for the squares around the mean of both parts.
        before, rows = rows, rows + len(values)
        own = values.mean(axis=0)
        squares += np.square(values - own).sum(axis=0) + np.square(own - mean) * before * len(values) / rows
        mean += (own - mean) * len(values) / rows
        low, high = np.minimum(low, values.min(axis=0)), np.maximum(high, values.max(axis=0))
    if not rows:
        raise ConfigError(f"No training row has a finite number in each of the columns {', '.join(columns)}.")
    is_constant = low == high
    std = np.where(is_constant, 1.0, np.sqrt(squares / rows))
    return {"mean": np.where(is_constant, low, mean).tolist(), "std": std.tolist()}


def _complete_rows(table: pa.Table, columns: Sequence[str]) -> np.ndarray:
    """Return the rows in which every column has a finite number."""
    for name in columns:
        if not _is_numeric(table.schema.field(name)):
            kind = table.schema.field(name).type
            raise ConfigError(f"`columns` must name numeric columns, got `{name}` ({kind}).")
    values = [table[name].cast(pa.float64(), safe=False).to_numpy() for name in columns]
    rows = np.stack(values, axis=1)
    return rows[(np.abs(rows) <= LARGEST).all(axis=1)]
