"""All devices of a task: their ids in memory, their data loaded on access."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from partita.data.arrow import Ids
from partita.data.examples import examples_of
from partita.protocol import DeviceId

Splits = Mapping[str, Any]
"""A device's data by split: `train`, `test` and optionally `validation`; see `examples_of`."""


class Devices(Mapping[DeviceId, Splits]):
    """A lazy mapping from device id to data: it holds the ids, and `load` returns one device's data.

    Args:
        ids: the ids.
        load: returns the data of one device.
        largest: returns the number of training examples of the largest device, where no data has to be loaded
            for it; an upper bound is enough.
        size: returns the number of training examples of a device, where no data has to be loaded for it; an
            estimate is enough.

    >>> devices = Devices((f"{i:07}" for i in range(1_000_000)), load=lambda device: {"train": [device]})
    >>> devices["0000007"], devices.ids[999_999]
    ({'train': ['0000007']}, '0999999')
    """

    def __init__(
        self,
        ids: Iterable[DeviceId],
        load: Callable[[DeviceId], Splits],
        largest: Callable[[], int] | None = None,
        size: Callable[[DeviceId], int] | None = None,
    ) -> None:
        self.ids = Ids(ids)
        self.largest = largest
        self.size = size
        self._load = load

    def __getitem__(self, device: DeviceId) -> Splits:
        return self._load(device)

    def __iter__(self) -> Iterator[DeviceId]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, device: object) -> bool:
        return device in self.ids


def devices_of(devices: Mapping[DeviceId, Splits]) -> Devices:
    """Return any mapping of devices as `Devices`."""
    if isinstance(devices, Devices):
        return devices
    if wrong := [device for device in devices if not isinstance(device, str)]:
        raise TypeError(f"Device ids must be strings, got {wrong[0]!r}: {type(wrong[0]).__name__}.")
    if not isinstance(devices, dict):
        return Devices(devices, devices.__getitem__)
    return Devices(devices, devices.__getitem__, partial(_largest, devices), partial(_size, devices))


def _largest(devices: dict[DeviceId, Splits]) -> int:
    return max(len(examples_of(splits["train"])) for splits in devices.values() if "train" in splits)


def _size(devices: dict[DeviceId, Splits], device: DeviceId) -> int:
    return len(examples_of(devices[device].get("train", ())))
