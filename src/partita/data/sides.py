"""On which side of a split a row is: a column says it, or the row itself does.

Where sides are drawn they follow from a digest of the row's group, its id or its content, and of nothing
else: rows that are added later move no other.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from partita.data.ids import has_text
from partita.data.options import TableOptions
from partita.data.rows import WrongRow

SIDES = ("train", "validation", "test")
_TRAIN, _VALIDATION, _TEST = range(3)
Numbers = np.ndarray


class Sides:
    """Tells the sides of rows.

    Args:
        names: the columns that the table has.
        options: which of them say what.
    """

    def __init__(self, names: Sequence[str], options: TableOptions) -> None:
        self.names = names
        self.options = options

    @cached_property
    def split(self) -> str:
        """The column of sides; none where they are drawn."""
        if self.options.split in ("hash", "time"):
            return ""
        return self.options.split or ("split" if "split" in self.names else "")

    @cached_property
    def named(self) -> str:
        """The column that names rows or their groups; none where there is none."""
        for given, usual in ((self.options.group, "group"), (self.options.id, "id")):
            name = given or usual
            if name in self.names:
                return name
        return ""

    @cached_property
    def keys(self) -> list[str]:
        """The columns that tell rows apart where sides are drawn: the group's, the id's, or all content."""
        if self.named:
            return [self.named]
        return sorted(name for name in self.names if name not in ("split", self.split, self.options.device))

    @cached_property
    def columns(self) -> list[str]:
        """The columns from which sides follow."""
        if self.by_time:
            return [self.options.time]
        said = [self.split] if self.split else []
        keyed = not said or bool(self.options.validation)
        return list(dict.fromkeys([*said, *(self.keys if keyed else [])]))

    @property
    def by_time(self) -> bool:
        """Whether a device's newest rows are its test rows: its rows have to be seen together."""
        return self.options.split == "time"

    @property
    def by_content(self) -> bool:
        """Whether all that is in a row tells its side."""
        return not (self.split or self.by_time or self.named)

    def check_type(self, schema: pa.Schema) -> str:
        """Return what is wrong with the column of sides, nothing where it can hold texts."""
        if not self.split or has_text(schema.field(self.split).type):
            return ""
        kind = schema.field(self.split).type
        return f"`{self.split}` must hold {', '.join(SIDES)}, it holds {kind}"

    def check_full(self, rows: pa.Table) -> None:
        """Raise a `WrongRow` for a row without a time, an id or a group where its side follows from that."""
        full = [self.options.time] if self.by_time else [name for name in self.columns if name == self.named]
        for name in full:
            row = pc.index(rows[name].combine_chunks().is_null(nan_is_null=True), True).as_py()
            if row >= 0:
                raise WrongRow(row, f"`{name}` is empty")

    def of(self, rows: pa.Table) -> Numbers:
        """Return the side of every row, as its place in `SIDES`; by time, all rows are one device's."""
        if self.by_time:
            return self._newest(rows)
        if self.split:
            sides = self._said(rows)
        else:
            sides = np.where(self._shares(rows, "test") < self.options.test, _TEST, _TRAIN)
        if self.options.validation:
            held_out = self._shares(rows, "validation") < self.options.validation
            sides = np.where((sides == _TRAIN) & held_out, _VALIDATION, sides)
        return sides

    def by_age(self, rows: int) -> Numbers:
        """Return the sides of a device's rows from the oldest to the newest: train, validation, test."""
        test = min(math.ceil(self.options.test * rows), rows - 1)
        validation = min(math.ceil(self.options.validation * (rows - test)), rows - test - 1)
        return np.repeat([_TRAIN, _VALIDATION, _TEST], [rows - test - validation, validation, test])

    def _newest(self, rows: pa.Table) -> Numbers:
        order = np.argsort(rows[self.options.time].to_numpy(), kind="stable")
        sides = np.empty(len(rows), int)
        sides[order] = self.by_age(len(rows))
        return sides

    def _said(self, rows: pa.Table) -> Numbers:
        column = _as_bytes(rows[self.split]).combine_chunks()
        sides = np.full(len(rows), -1)
        for place, side in enumerate(SIDES):
            here = pc.call_function("equal", [column, pa.scalar(side.encode())]).fill_null(False)
            sides[here.to_numpy(zero_copy_only=False)] = place
        wrong = np.flatnonzero(sides < 0)
        if len(wrong):
            row = int(wrong[0])
            content = column[row].as_py()
            value = None if content is None else content.decode(errors="backslashreplace")
            raise WrongRow(row, f"`{self.split}` must be {', '.join(SIDES)}, got {value!r}")
        return sides

    def keys_in(self, rows: pa.Table) -> list[bytes]:
        """Return what tells each row apart where sides are drawn.

        Raises:
            WrongRow: a row cannot be decoded.
        """
        keyed = pa.table({name: _plain(rows[name]) for name in self.keys})
        try:
            return list(keys_of(keyed.to_pylist()))
        except (ValueError, OverflowError) as error:
            row = next(place for place in range(len(keyed)) if not _is_decoded(keyed.slice(place, 1)))
            raise WrongRow(row, f"what tells the row apart cannot be read, {error}") from error

    def _shares(self, rows: pa.Table, use: str) -> Numbers:
        return np.array([share_of(key, use) for key in self.keys_in(rows)])


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts and times as bytes, whatever Python would make of them; other columns as they are."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_temporal)
    return _as_bytes(column) if any(is_one(kind) for is_one in texts) else column


def _as_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the texts of a column as bytes, which need not be UTF-8."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    plain = column.cast(kind)
    if not (
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    ):
        plain = plain.cast(pa.large_string() if pa.types.is_large_string(kind) else pa.string())
    return plain.cast(pa.large_binary())


def _is_decoded(rows: pa.Table) -> bool:
    try:
        rows.to_pylist()
    except (ValueError, OverflowError):
        return False
    return True


def share_of(key: bytes, use: str) -> float:
    """Return a number in [0, 1) that a key and what it is used for determine.

    >>> share_of(b"a", "test") == share_of(b"a", "test") != share_of(b"a", "validation")
    True
    """
    digest = hashlib.blake2b(key, digest_size=8, person=use.encode()).digest()
    return int.from_bytes(digest, "big") / 2**64


def keys_of(rows: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield what tells each row apart: all that is in it; of a picture or a sound its bytes, not its path."""
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
