"""The rows of one device: content, and where each stands, so that a bad one can be named."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from partita.errors import ConfigError
from partita.protocol import DeviceId

Item = TypeVar("Item")
Place = tuple[str, int]
"""A file, and the number of a row in it, from 0."""
_WORDS: dict[type, str] = {int: "a whole number", str: "a text", dict: "a struct of bytes and path"}


class BadRow(Exception):
    """A row that cannot be used; the message says why."""


class BadData(ConfigError):
    """A row of a table that cannot be used, named by file, row and device."""


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
    skip: Callable[[Place, str], None] | None = None
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
        for place, row in zip(self.places, self.content, strict=True):
            try:
                yield use(row)
            except BadRow as error:
                file, number = place
                text = f"`{file}`, row {number}, device {self.device!r}: {error}"
                if self.skip is None:
                    raise BadData(f"{text} (`skip_bad = true` leaves such rows out).") from error
                self.skip(place, text)


def value_in(row: Mapping[str, Any], column: str, kind: type[Item]) -> Item:
    """Return a row's value, where it is there and of the right kind."""
    value = row[column]
    if value is None:
        raise BadRow(f"`{column}` is empty")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadRow(f"`{column}` must be {_WORDS[kind]}, got {type(value).__name__}")
    return value
