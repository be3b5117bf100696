"""The split of each row, train, validation or test: read from a column, or drawn from the row itself.

Whether a row is drawn as a test row follows from a hash of its group, its id or its content, and of nothing
else: rows that are added later never move a row between training and test. Validation rows are drawn from the
training rows of each device, by the same hash.
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
        """Return the split of every row of one device."""
        if self.by_time:
            return self._assign_by_time(rows)
        return hold_out(*self.draw(rows), self.options.validation)

    def draw(self, rows: pa.Table) -> tuple[Codes, np.ndarray]:
        """Return the split of every row before validation rows are held out, and an order to hold them out.

        Rows with the same number in that order are held out together. By time, nothing is drawn here.
        """
        keys = self.row_keys(rows) if self.columns != [self.split_column] else []
        order = _fractions(keys, "validation") if self.options.validation else np.zeros(len(rows))
        if self.split_column:
            return self._read(rows), order
        return np.where(_fractions(keys, "test") < self.options.test, _TEST, _TRAIN), order

    def assign_by_age(self, rows: int) -> Codes:
        """Return the splits of a device's rows from the oldest to the newest: train, validation, test."""
        test = min(math.ceil(self.options.test * rows), rows - 1)
        validation = held_out_count(self.options.validation, rows - test)
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


def _fractions(keys: Sequence[bytes], purpose: str) -> np.ndarray:
    return np.array([fraction_of(key, purpose) for key in keys])


def held_out_count(share: float, rows: int) -> int:
    """Return how many of a device's training rows are held out: the nearest number to a share, but never all.

    >>> held_out_count(0.2, 8), held_out_count(0.2, 2), held_out_count(0.9, 2), held_out_count(0.9, 0)
    (2, 0, 1, 0)
    """
    return min(round(share * rows), max(rows - 1, 0))


def hold_out(splits: Codes, order: np.ndarray, share: float) -> Codes:
    """Return the splits of one device's rows with `share` of its training rows held out for validation.

    Rows with the same number in `order` stay together. Within that, the number of validation rows is the
    nearest to the share, but never all training rows. A device that has validation rows keeps its splits.
    """
    training = np.flatnonzero(splits == _TRAIN)
    if not share or not len(training) or (splits == _VALIDATION).any():
        return splits
    wanted, held_out = held_out_count(share, len(training)), splits.copy()
    in_order = training[np.argsort(order[training], kind="stable")]
    ends = np.flatnonzero(np.diff(order[in_order], append=np.inf)) + 1
    if len(ends) == len(training):
        held_out[in_order[:wanted]] = _VALIDATION
        return held_out
    units = np.split(in_order, ends[:-1])
    for unit in _nearest_units([len(unit) for unit in units], wanted):
        held_out[units[unit]] = _VALIDATION
    return held_out


def hold_out_by_device(splits: Codes, order: np.ndarray, begins: np.ndarray, share: float) -> Codes:
    """Return the splits of the rows of whole devices, which begin at some positions, as in `hold_out`."""
    if not share:
        return splits
    parts = zip(np.split(splits, begins[1:]), np.split(order, begins[1:]), strict=True)
    return np.concatenate([hold_out(own, own_order, share) for own, own_order in parts])


def _nearest_units(sizes: Sequence[int], wanted: int) -> list[int]:
    """Return units, but not all, whose sizes add up to the number nearest to `wanted`, early ones preferred.

    >>> _nearest_units([1, 1, 1, 1, 1], 2), _nearest_units([15, 30, 20], 20), _nearest_units([9], 5)
    ([0, 1], [2], [])
    """
    units, left = list[int](), wanted
    for unit, size in enumerate(sizes):
        if size <= left:
            units.append(unit)
            left -= size
    if not left:
        return units
    # Rows that must stay together are in the way: look at every sum, each with the last unit that it needs.
    last = {0: -1}
    reached, within = 1, (1 << (2 * wanted + 1)) - 1  # bit k: the sum k has been reached, is small enough
    for unit, size in enumerate(sizes):
        new = reached << size & within & ~reached
        reached |= new
        while new:
            lowest = new & -new
            last[lowest.bit_length() - 1] = unit
            new ^= lowest
    total = min(last.keys() - {sum(sizes)}, key=lambda total: (abs(total - wanted), total))
    units.clear()
    while total:
        units.append(last[total])
        total -= sizes[last[total]]
    return units[::-1]


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
