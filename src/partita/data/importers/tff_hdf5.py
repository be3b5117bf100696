"""TensorFlow Federated's HDF5 files: one for each side, with a group `examples/<device>` of datasets."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.data.importers.source import Tick
from partita.data.importers.tff_examples import TICK, Example, Layout, Side
from partita.errors import ConfigError, needed
from partita.protocol import DeviceId


@dataclass(frozen=True)
class Hdf5Examples:
    """The examples in a folder of HDF5 files, opened for each device anew."""

    layout: Layout
    folder: Path

    def file(self, side: Side) -> Path:
        """Return the file that holds a side."""
        return self.folder / self.layout.hdf5[side]

    def counts(self, tick: Tick) -> Iterator[tuple[DeviceId, int, int]]:
        """Yield each device with the lengths of its datasets."""
        with self._open("train") as train, self._open("test") as test:
            devices = sorted({*train, *test})
        # An open file remembers every group that was looked at: it is opened anew for each lot of devices.
        for begin in range(0, len(devices), TICK):
            tick(begin, len(devices))
            lot = devices[begin : begin + TICK]
            yield from zip(lot, self._counts(lot, "train"), self._counts(lot, "test"), strict=True)

    def keep(self, devices: Sequence[DeviceId], tick: Tick) -> None:
        """Do nothing: a group is found by its name."""

    def read(self, device: DeviceId, side: Side, most: int | None) -> Iterator[Example]:
        """Yield a device's first examples of a side; all of these are in memory."""
        with self._open(side) as group:
            if device not in group:
                return
            members = self.layout.members
            values = {member: self._dataset(group, device, side, member)[:most] for member in members}
        lengths = {member: len(value) for member, value in values.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigError(
                f"`{self.file(side)}`, device {device!r}: the datasets must be of one length, got {lengths}."
            )
        flat = {name: value.reshape(len(value), math.prod(value.shape[1:])) for name, value in values.items()}
        for row in range(min(lengths.values())):
            yield {name: value[row].tolist() for name, value in flat.items()}

    def _counts(self, devices: Sequence[DeviceId], side: Side) -> list[int]:
        member = self.layout.members[0]
        with self._open(side) as group:
            return [
                len(self._dataset(group, device, side, member)) if device in group else 0
                for device in devices
            ]

    def _dataset(self, group: Any, device: DeviceId, side: Side, member: str) -> Any:
        dataset = group.get(f"{device}/{member}")
        if not isinstance(dataset, _h5py(self.layout.command).Dataset) or not dataset.shape:
            where = f"`{self.file(side)}`, device {device!r}"
            raise ConfigError(f"{where}: there must be a dataset `{member}` with a row for each example.")
        return dataset

    @contextmanager
    def _open(self, side: Side) -> Iterator[Any]:
        path = self.file(side)
        h5py = _h5py(self.layout.command)
        try:
            with h5py.File(path, "r") as file:
                group = file.get("examples")
                if not isinstance(group, h5py.Group):
                    raise ConfigError(f"`{path}` must have a group `examples`, got {sorted(file)}.")
                yield group
        except OSError as error:
            told = " ".join(str(error).split())
            raise ConfigError(f"`{path}` cannot be read as an HDF5 file: {told}.") from error


def _h5py(command: str) -> Any:
    return needed("h5py", by=f"`{command}`", extra="import")
