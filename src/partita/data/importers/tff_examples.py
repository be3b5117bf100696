"""What TensorFlow Federated's HDF5 and SQLite files have in common: examples by device, train and test."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from partita.data.importers.example_proto import Values
from partita.data.importers.source import Tick
from partita.protocol import DeviceId

Side = Literal["train", "test"]
SIDES: tuple[Side, ...] = ("train", "test")
Example = Mapping[str, Values]
"""An example by member: a flat list of values each."""
TICK = 1000
"""After how many devices the progress is told."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How TensorFlow Federated names the files, the splits and the members of a data set."""

    command: str
    """The command that imports it."""
    hdf5: Mapping[Side, str]
    """The HDF5 file of each side."""
    sqlite: str
    """The SQLite file of all sides."""
    splits: Mapping[Side, str]
    """The name of each side in the SQLite file."""
    members: tuple[str, ...]
    """The members of an example that are read."""


class Examples(Protocol):
    """The examples of a data set, by device and side."""

    def file(self, side: Side) -> Path:
        """Return the file that holds a side."""
        ...

    def counts(self, tick: Tick) -> Iterator[tuple[DeviceId, int, int]]:
        """Yield each device in the order of ids with its training and test examples, none of them read."""
        ...

    def keep(self, devices: Sequence[DeviceId], tick: Tick) -> None:
        """Make ready to read these devices, in place."""
        ...

    def read(self, device: DeviceId, side: Side, most: int | None) -> Iterator[Example]:
        """Yield a device's first examples of a side, `most` of them or all."""
        ...


def place(file: Path, device: DeviceId, side: Side, row: int) -> str:
    """Return how an error names an example; the rows of a device's side count from 0."""
    return f"`{file}`, device {device!r}, {side} row {row}"
