"""The rows of one device: content, and where each stands, so that a bad one can be named."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from partita.data.skipped import LeftOut
from partita.errors import ConfigError
from partita.protocol import DeviceId

Item = TypeVar("Item")
Place = tuple[str, int]
"""A file, and the number of a row in it, from 0."""
_WORDS: dict[type, str] = {int: "a whole number", str: "a text", dict: "a struct of bytes and path"}


class BadRow(Exception):
    """A row that cannot be used; the message says why."""


class WrongRow(Exception):
    """A row that nothing can be done without; `row` is its place among those looked at."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class BadData(ConfigError):
    """A row of a table that cannot be used, named by file, row and device."""


class PartlyRead(Mapping[str, Any]):
    """A row of which some columns cannot be decoded: asking for one of them is a `BadRow`.

    Args:
        values: the other columns.
        reasons: why, by column.
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
class Rows:
    """Some rows of a device, in the table's order."""

    device: DeviceId
    side: str
    """`train`, `validation` or `test`."""
    places: Sequence[Place]
    """Where each row stands."""
    content: Sequence[Mapping[str, Any]]
    """What is in each row, by column."""
    skip: Callable[[LeftOut], None] | None = None
    """Told of every row that is left out because it cannot be used; None: such a row is an error."""

    def __len__(self) -> int:
        return len(self.places)

    def used(self, use: Callable[[Mapping[str, Any]], Item]) -> list[Item]:
        """Return what `use` makes of each row; it raises `BadRow` for one that it cannot use.

        Raises:
            BadData: a row is bad, and bad rows are not skipped.
        """
        return list(self._used(use))

    def _used(self, use: Callable[[Mapping[str, Any]], Item]) -> Iterator[Item]:
        for (file, number), row in zip(self.places, self.content, strict=True):
            try:
                yield use(row)
            except BadRow as error:
                bad = LeftOut(file, number, self.device, str(error))
                if self.skip is None:
                    raise BadData(f"{bad} (`skip_bad = true` leaves such rows out).") from error
                self.skip(bad)


def value_in(row: Mapping[str, Any], column: str, kind: type[Item]) -> Item:
    """Return a row's value, where it is there and of the right kind."""
    value = row[column]
    if value is None:
        raise BadRow(f"`{column}` is empty")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadRow(f"`{column}` must be {_WORDS[kind]}, got {type(value).__name__}")
    return value
