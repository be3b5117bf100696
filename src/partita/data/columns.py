"""Which columns of a table are numbers to tell something from."""

import logging
from pathlib import Path

import pyarrow as pa

from partita.data.options import TableOptions
from partita.data.reading import open_files
from partita.errors import ConfigError

logger = logging.getLogger(__name__)

_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)


def numeric_columns(path: Path, options: TableOptions, *, besides: str) -> list[str]:
    """Return the columns of numbers that say nothing about whose a row is, on which side, or how new."""
    named = {options.device, options.split, options.id, options.group, options.time} - {""}
    known = {besides, "split", "id", "group", "time"} | named
    others = [field for field in open_files(path).schema if field.name not in known]
    found = [field.name for field in others if any(is_one(field.type) for is_one in _NUMBERS)]
    if not found:
        raise ConfigError(f"`{path}` has no column of numbers besides {', '.join(sorted(known))}.")
    if left := [f"`{field.name}` ({field.type})" for field in others if field.name not in found]:
        logger.warning("Columns of `%s` that are no numbers are left out: %s.", path, ", ".join(left))
    return found
