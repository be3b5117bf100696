"""The interface to TensorFlow Federated's HDF5 and SQLite files: examples by device and split."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from partita.data.importers.example_proto import Values
from partita.data.writing import ProgressFn
from partita.protocol import DeviceId

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
Example = Mapping[str, Values]
"""An example: a flat list of values for each member."""
DEVICES_AT_A_TIME = 1000
"""Devices between two calls of the progress callback."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """TensorFlow Federated's names of a dataset's files, splits and members."""

    command: str
    """The command that imports it."""
    hdf5: Mapping[Split, str]
    """The HDF5 file of each split."""
    sqlite: str
    """The SQLite file of all splits."""
    splits: Mapping[Split, str]
    """The name of each split in the SQLite file."""
    members: tuple[str, ...]
    """The members of an example that are read."""


class Examples(Protocol):
    """The examples of a dataset, by device and split."""

    def file(self, split: Split) -> Path:
        """Return the file of a split."""
        ...

    def counts(self, progress: ProgressFn) -> Iterator[tuple[DeviceId, int, int]]:
        """Yield each device, sorted by id, with its numbers of training and test examples."""
        ...

    def keep(self, devices: Sequence[DeviceId], progress: ProgressFn) -> None:
        """Prepare to read these devices, in place."""
        ...

    def read(self, device: DeviceId, split: Split, limit: int | None) -> Iterator[Example]:
        """Yield a device's first `limit` examples of a split, or all."""
        ...


def location(file: Path, device: DeviceId, split: Split, row: int) -> str:
    """Return the location of an example for an error message; rows are counted from 0 in each split."""
    return f"`{file}`, device {device!r}, {split} row {row}"
