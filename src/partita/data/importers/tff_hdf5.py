"""TensorFlow Federated's HDF5 files: one per split, with a group `examples/<device>` of datasets."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.data.importers.tff_examples import DEVICES_AT_A_TIME, Example, Layout, Split
from partita.data.writing import ProgressFn
from partita.errors import ConfigError, needed
from partita.protocol import DeviceId

_MAX_BYTES = 256_000_000
"""The maximum size of a device's dataset, decompressed: all of it is in memory at once."""


@dataclass(frozen=True)
class Hdf5Examples:
    """The examples in a folder of HDF5 files, which are opened again for each device."""

    layout: Layout
    folder: Path

    def file(self, split: Split) -> Path:
        """Return the file of a split."""
        return self.folder / self.layout.hdf5[split]

    def counts(self, progress: ProgressFn) -> Iterator[tuple[DeviceId, int, int]]:
        """Yield each device, sorted by id, with the lengths of its datasets."""
        with self._open("train") as train, self._open("test") as test:
            devices = sorted({*train, *test})
        for device in devices:
            if not device or not _is_utf8(device):
                raise ConfigError(f"`{self.folder}`: each device's name must be UTF-8 text, got {device!r}.")
        # An open file keeps every group that was accessed in memory: open it again for each batch of devices.
        for begin in range(0, len(devices), DEVICES_AT_A_TIME):
            progress(begin, len(devices))
            batch = devices[begin : begin + DEVICES_AT_A_TIME]
            yield from zip(batch, self._counts(batch, "train"), self._counts(batch, "test"), strict=True)

    def keep(self, devices: Sequence[DeviceId], progress: ProgressFn) -> None:
        """Do nothing: HDF5 finds a group by its name."""

    def read(self, device: DeviceId, split: Split, limit: int | None) -> Iterator[Example]:
        """Yield a device's first `limit` examples of a split, all of which are in memory."""
        with self._open(split) as group:
            if device not in group:
                return
            members = self.layout.members
            values = {member: self._values(group, device, split, member, limit) for member in members}
        lengths = {member: len(value) for member, value in values.items()}
        if len(set(lengths.values())) > 1:
            where = f"`{self.file(split)}`, device {device!r}"
            raise ConfigError(f"{where}: the datasets must have the same length, got {lengths}.")
        flat = {name: value.reshape(len(value), math.prod(value.shape[1:])) for name, value in values.items()}
        for row in range(min(lengths.values())):
            yield {name: value[row].tolist() for name, value in flat.items()}

    def _counts(self, devices: Sequence[DeviceId], split: Split) -> list[int]:
        member = self.layout.members[0]
        with self._open(split) as group:
            return [
                len(self._dataset(group, device, split, member)) if device in group else 0
                for device in devices
            ]

    def _values(self, group: Any, device: DeviceId, split: Split, member: str, limit: int | None) -> Any:
        """Return the first `limit` rows of a dataset, after a look at their size."""
        dataset = self._dataset(group, device, split, member)
        rows = len(dataset) if limit is None else min(limit, len(dataset))
        size = rows * math.prod(dataset.shape[1:]) * dataset.dtype.itemsize
        if size > _MAX_BYTES:
            where = f"`{self.file(split)}`, device {device!r}"
            raise ConfigError(f"{where}: `{member}` has {size:,} bytes, more than {_MAX_BYTES:,}.")
        return dataset[:limit]

    def _dataset(self, group: Any, device: DeviceId, split: Split, member: str) -> Any:
        dataset = group.get(f"{device}/{member}")
        if not isinstance(dataset, _h5py(self.layout.command).Dataset) or not dataset.shape:
            where = f"`{self.file(split)}`, device {device!r}"
            raise ConfigError(f"{where}: there must be a dataset `{member}` with a row for each example.")
        return dataset

    @contextmanager
    def _open(self, split: Split) -> Iterator[Any]:
        path = self.file(split)
        h5py = _h5py(self.layout.command)
        try:
            with h5py.File(path, "r") as file:
                group = file.get("examples")
                if not isinstance(group, h5py.Group):
                    raise ConfigError(f"`{path}` must have a group `examples`, got {sorted(file)}.")
                yield group
        except ConfigError:
            raise
        except Exception as error:  # In a damaged file h5py can stumble anywhere.
            message = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise ConfigError(f"`{path}` cannot be read as an HDF5 file: {message}.") from error


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # h5py decodes other names with surrogates.
        return False
    return True


def _h5py(command: str) -> Any:
    return needed("h5py", by=f"`{command}`", extra="import")
