"""The split of each row, train, validation or test: read from a column, or drawn from the row itself.

A drawn split follows from a hash of the row's group, its id or its content, and of nothing else: rows that
are added later never move a row to another split.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from partita.data.arrow import casts_to_string
from partita.data.options import TableOptions
from partita.data.rows import RowError

SPLITS = ("train", "validation", "test")
_TRAIN, _VALIDATION, _TEST = range(3)
Codes = np.ndarray
"""The split of each row, as a position in `SPLITS`."""


class SplitRule:
    """Assigns rows to splits.

    Args:
        names: the columns of the table.
        options: the roles of these columns, and the shares of the splits.
    """

    def __init__(self, names: Sequence[str], options: TableOptions) -> None:
        self.names = names
        self.options = options

    @cached_property
    def split_column(self) -> str:
        """The column with the splits; empty if they are drawn."""
        if self.options.split in ("hash", "time"):
            return ""
        return self.options.split or ("split" if "split" in self.names else "")

    @cached_property
    def key_column(self) -> str:
        """The column with groups or row ids; empty if there is none."""
        for given, default in ((self.options.group, "group"), (self.options.id, "id")):
            name = given or default
            if name in self.names:
                return name
        return ""

    @cached_property
    def key_columns(self) -> list[str]:
        """The columns that are hashed to draw a split: the group, the id, or all content."""
        if self.key_column:
            return [self.key_column]
        others = ("split", self.split_column, self.options.device)
        return sorted(name for name in self.names if name not in others)

    @cached_property
    def columns(self) -> list[str]:
        """The columns from which the split follows."""
        if self.by_time:
            return [self.options.time]
        given = [self.split_column] if self.split_column else []
        drawn = not given or bool(self.options.validation)
        return list(dict.fromkeys([*given, *(self.key_columns if drawn else [])]))

    @property
    def by_time(self) -> bool:
        """Whether a device's newest rows are its test rows, so that all its rows are needed at once."""
        return self.options.split == "time"

    @property
    def by_content(self) -> bool:
        """Whether the split follows from all of a row's content."""
        return not (self.split_column or self.by_time or self.key_column)

    def wrong_type(self, schema: pa.Schema) -> str:
        """Return an error message if the split column cannot hold strings, else an empty string."""
        if not self.split_column or casts_to_string(schema.field(self.split_column).type):
            return ""
        kind = schema.field(self.split_column).type
        return f"`{self.split_column}` must hold {', '.join(SPLITS)}, got {kind}"

    def check_complete(self, rows: pa.Table) -> None:
        """Raise a `RowError` for a row without the time, id or group that its split follows from."""
        needed = [self.options.time] if self.by_time else [c for c in self.columns if c == self.key_column]
        for name in needed:
            row = pc.index(rows[name].combine_chunks().is_null(nan_is_null=True), True).as_py()
            if row >= 0:
                raise RowError(row, f"`{name}` is empty")

    def assign(self, rows: pa.Table) -> Codes:
        """Return the split of every row; to split by time, `rows` must be all rows of a single device."""
        if self.by_time:
            return self._assign_by_time(rows)
        if self.split_column:
            splits = self._read(rows)
        else:
            splits = np.where(self._fractions(rows, "test") < self.options.test, _TEST, _TRAIN)
        if self.options.validation:
            held_out = self._fractions(rows, "validation") < self.options.validation
            splits = np.where((splits == _TRAIN) & held_out, _VALIDATION, splits)
        return splits

    def assign_by_age(self, rows: int) -> Codes:
        """Return the splits of a device's rows from the oldest to the newest: train, validation, test."""
        test = min(math.ceil(self.options.test * rows), rows - 1)
        validation = min(math.ceil(self.options.validation * (rows - test)), rows - test - 1)
        return np.repeat([_TRAIN, _VALIDATION, _TEST], [rows - test - validation, validation, test])

    def _assign_by_time(self, rows: pa.Table) -> Codes:
        order = np.argsort(rows[self.options.time].to_numpy(), kind="stable")
        splits = np.empty(len(rows), int)
        splits[order] = self.assign_by_age(len(rows))
        return splits

    def _read(self, rows: pa.Table) -> Codes:
        """Return the splits in the split column."""
        column = _as_bytes(rows[self.split_column]).combine_chunks()
        splits = np.full(len(rows), -1)
        for code, split in enumerate(SPLITS):
            equal = pc.call_function("equal", [column, pa.scalar(split.encode())]).fill_null(False)
            splits[equal.to_numpy(zero_copy_only=False)] = code
        wrong = np.flatnonzero(splits < 0)
        if len(wrong):
            row = int(wrong[0])
            content = column[row].as_py()
            value = None if content is None else content.decode(errors="backslashreplace")
            raise RowError(row, f"`{self.split_column}` must be {', '.join(SPLITS)}, got {value!r}")
        return splits

    def row_keys(self, rows: pa.Table) -> list[bytes]:
        """Return the key of each row, from which its split is drawn.

        Raises:
            RowError: a row cannot be decoded.
        """
        content = pa.table({name: _strings_as_bytes(rows[name]) for name in self.key_columns})
        try:
            return list(content_keys(content.to_pylist()))
        except (ValueError, OverflowError) as error:
            row = next(row for row in range(len(content)) if not _is_decodable(content.slice(row, 1)))
            raise RowError(
                row, f"the columns {', '.join(self.key_columns)} cannot be read, {error}"
            ) from error

    def _fractions(self, rows: pa.Table, purpose: str) -> np.ndarray:
        return np.array([fraction_of(key, purpose) for key in self.row_keys(rows)])


def _strings_as_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return strings and times as bytes, independent of how Python represents them; others unchanged."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    converted = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_temporal)
    return _as_bytes(column) if any(is_kind(kind) for is_kind in converted) else column


def _as_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a column as the bytes of their strings, which need not be UTF-8."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    plain = column.cast(kind)
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    if not any(is_kind(kind) for is_kind in binary):
        plain = plain.cast(pa.large_string() if pa.types.is_large_string(kind) else pa.string())
    return plain.cast(pa.large_binary())


def _is_decodable(rows: pa.Table) -> bool:
    try:
        rows.to_pylist()
    except (ValueError, OverflowError):
        return False
    return True


def fraction_of(key: bytes, purpose: str) -> float:
    """Return a pseudorandom number in [0, 1) that depends on a row's key and the purpose alone.

    >>> fraction_of(b"a", "test") == fraction_of(b"a", "test") != fraction_of(b"a", "validation")
    True
    """
    digest = hashlib.blake2b(key, digest_size=8, person=purpose.encode()).digest()
    return int.from_bytes(digest, "big") / 2**64


def content_keys(rows: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield a hash of each row's content; of an image or audio its bytes count, not its path."""
    for row in rows:
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(row):
            content = _bytes_of(row[name])
            digest.update(f"{name}:{len(content)}:".encode() + content)
        yield digest.digest()


def _bytes_of(value: Any) -> bytes:
    match value:
        case bytes():
            return value
        case str():
            return value.encode()
        case {"bytes": bytes() as content}:
            return content
        case _:
            return repr(value).encode()
