"""The rows of one device: content, and where each stands, so that a bad one can be named."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from partita.errors import ConfigError
from partita.protocol import DeviceId

Item = TypeVar("Item")


class BadRow(Exception):
    """A row that cannot be used; the message says why."""


class BadData(ConfigError):
    """A row of a table that cannot be used, named by file, row and device."""


@dataclass(frozen=True)
class Rows:
    """Some rows of a device, in the table's order."""

    file: str
    device: DeviceId
    side: str
    """`train`, `validation` or `test`."""
    numbers: Sequence[int]
    """Where each row stands in the file, from 0."""
    content: Sequence[Mapping[str, Any]]
    """What is in each row, by column."""
    skip: Callable[[str], None] | None = None
    """Told of every row that is left out because it cannot be used; None: such a row is an error."""

    def __len__(self) -> int:
        return len(self.numbers)

    def used(self, use: Callable[[Mapping[str, Any]], Item]) -> list[Item]:
        """Return what `use` makes of each row; it raises `BadRow` for one that it cannot use.

        Raises:
            BadData: a row is bad, and bad rows are not skipped.
        """
        return list(self._used(use))

    def _used(self, use: Callable[[Mapping[str, Any]], Item]) -> Iterator[Item]:
        for number, row in zip(self.numbers, self.content, strict=True):
            try:
                yield use(row)
            except BadRow as error:
                text = f"`{self.file}`, row {number}, device {self.device!r}: {error}"
                if self.skip is None:
                    raise BadData(f"{text} (`skip_bad = true` leaves such rows out).") from error
                self.skip(text)


def value_in(row: Mapping[str, Any], column: str, kind: type[Item]) -> Item:
    """Return a row's value, where it is there and of the right kind."""
    value = row[column]
    if value is None:
        raise BadRow(f"`{column}` is empty")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadRow(f"`{column}` must be {kind.__name__}, got {type(value).__name__}")
    return value
