"""The rows of one device; a bad row among them is an error with its location, or skipped and logged."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

from partita.errors import ConfigError
from partita.protocol import DeviceId

Item = TypeVar("Item")
Location = tuple[str, int]
"""A file, and the number of a row in it, from 0."""

_KINDS: dict[type, str] = {int: "a whole number", str: "a string", dict: "a struct of bytes and path"}


class BadRow(Exception):
    """A row with unusable content; the message gives the reason. `skip_bad` skips it."""


class RowError(Exception):
    """A row that makes the whole table unusable; `row` is its position among the rows at hand."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class BadData(ConfigError):
    """A bad row that is not skipped, with its file, row and device."""


class PartialRow(Mapping[str, Any]):
    """A row some of whose columns cannot be decoded: accessing one of these raises `BadRow`.

    Args:
        values: the decoded columns.
        reasons: for each other column, why it cannot be decoded.
    """

    def __init__(self, values: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
        self._values = values
        self._reasons = reasons

    def __getitem__(self, column: str) -> Any:
        if column in self._reasons:
            raise BadRow(f"`{column}` {self._reasons[column]}")
        return self._values[column]

    def __iter__(self) -> Iterator[str]:
        yield from self._values
        yield from self._reasons

    def __len__(self) -> int:
        return len(self._values) + len(self._reasons)


@dataclass(frozen=True)
class SkippedRow:
    """A bad row of a table, and why it was skipped."""

    file: str
    row: int
    """Its number in the file, from 0."""
    device: DeviceId
    reason: str

    def __str__(self) -> str:
        return f"`{self.file}`, row {self.row}, device {self.device!r}: {self.reason}"


class SkippedRows(Sequence[SkippedRow]):
    """The distinct skipped rows, in the order in which they were found; it grows in place.

    >>> skipped = SkippedRows()
    >>> for _ in range(2):
    ...     skipped.add(SkippedRow("a.parquet", 3, "ann", "`text` is empty"))
    >>> len(skipped), str(skipped[0])
    (1, "`a.parquet`, row 3, device 'ann': `text` is empty")
    """

    def __init__(self) -> None:
        self._rows: dict[Location, SkippedRow] = {}
        self._path: Path | None = None
        self._collected: list[SkippedRow] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[SkippedRow]:
        return iter(self._rows.values())

    @overload
    def __getitem__(self, position: int) -> SkippedRow: ...
    @overload
    def __getitem__(self, position: slice) -> list[SkippedRow]: ...
    def __getitem__(self, position: int | slice) -> SkippedRow | list[SkippedRow]:
        """Return the row at a position, or the rows of a slice."""
        return list(self._rows.values())[position]

    def add(self, row: SkippedRow) -> None:
        """Add a row in place, unless it is already here; append it to the log file if there is one."""
        if self._collected is not None:
            self._collected.append(row)
            return
        if (row.file, row.row) in self._rows:
            return
        self._rows[row.file, row.row] = row
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")

    def log_to(self, path: Path) -> None:
        """Append rows to a log file from now on, after those that it already has.

        A last line that an interrupted write left incomplete is removed from the file.
        """
        found = list(self)
        self._rows = {(row.file, row.row): row for row in read_skipped(path)}
        self._path = path
        _drop_incomplete_line(path)
        for row in found:
            self.add(row)

    @contextlib.contextmanager
    def collected(self) -> Iterator[list[SkippedRow]]:
        """Yield a list to which rows are added in this block, instead of here and to the log file."""
        self._collected = []
        try:
            yield self._collected
        finally:
            self._collected = None


def read_skipped(path: Path) -> list[SkippedRow]:
    """Return the rows of a log file of skipped rows, without an incomplete last line."""
    if not path.exists():
        return []
    return [SkippedRow(**json.loads(line)) for line in _complete_lines(path.read_bytes()).splitlines()]


def skipped_text(skipped: Sequence[SkippedRow]) -> str:
    """Return how many bad rows were skipped, and the first of them."""
    rows = "1 bad row was" if len(skipped) == 1 else f"{len(skipped)} bad rows were"
    return f"{rows} skipped ({skipped[0]})"


def _drop_incomplete_line(path: Path) -> None:
    """Truncate a file after its last newline."""
    if path.exists():
        content = path.read_bytes()
        complete = _complete_lines(content)
        if complete != content:
            os.truncate(path, len(complete))


def _complete_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


@dataclass(frozen=True)
class Rows:
    """The rows of one split of a device, in the table's order."""

    device: DeviceId
    split: str
    """`train`, `validation` or `test`."""
    locations: Sequence[Location]
    """The file and number of each row."""
    content: Sequence[Mapping[str, Any]]
    """The values of each row, by column."""
    skip: Callable[[SkippedRow], None] | None = None
    """Called with each skipped row; None: a bad row is an error."""

    def __len__(self) -> int:
        return len(self.locations)

    def parse(self, parse: Callable[[Mapping[str, Any]], Item]) -> list[Item]:
        """Return `parse(row)` for each good row; the given `parse` raises `BadRow` for a bad one.

        Raises:
            BadData: a row is bad, and bad rows are not skipped.
        """
        return list(self._parse(parse))

    def _parse(self, parse: Callable[[Mapping[str, Any]], Item]) -> Iterator[Item]:
        for (file, number), row in zip(self.locations, self.content, strict=True):
            try:
                yield parse(row)
            except BadRow as error:
                bad = SkippedRow(file, number, self.device, str(error))
                if self.skip is None:
                    raise BadData(f"{bad} (`skip_bad = true` skips such rows).") from error
                self.skip(bad)


def value_of(row: Mapping[str, Any], column: str, kind: type[Item]) -> Item:
    """Return a row's value in a column.

    Raises:
        BadRow: it is missing or of another type.
    """
    value = row[column]
    if value is None:
        raise BadRow(f"`{column}` is empty")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadRow(f"`{column}` must be {_KINDS[kind]}, got {type(value).__name__}")
    return value
