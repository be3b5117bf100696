"""What an importer reads: the devices of a public data set, and the rows of one after the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from partita.protocol import DeviceId

Kind = Literal["image", "audio", "text", "label", "number"]
"""What a column holds: media as `{bytes, path}`, texts, whole numbers that name classes, real numbers."""
Row = Mapping[str, Any]
"""A row by column: `split`, `train` or `test`, and the content."""
Tick = Callable[[int, int], None]
"""Told how much of a piece of work is done, and how much there is."""


@dataclass(frozen=True)
class Survey:
    """Which devices of a data set are kept, found out before any row is read."""

    devices: Sequence[DeviceId]
    """The devices that are kept, in the order of their ids."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Why others were dropped, and how many for each reason."""
    paper: int | None = None
    """How many devices the paper keeps of the whole data set."""


class Source(Protocol):
    """A public data set in its own files."""

    @property
    def columns(self) -> Mapping[str, Kind]:
        """The content's columns, besides `device` and `split`."""
        ...

    def survey(self, tick: Tick) -> Survey:
        """Return which devices are kept; reads no more than it must."""
        ...

    def rows(self, device: DeviceId) -> Iterator[Row]:
        """Yield the rows of one device."""
        ...
