"""All devices of a task: their ids at hand, their data loaded when visited."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from partita.data.arrow import Ids
from partita.protocol import DeviceId

Splits = Mapping[str, Any]
"""A device's data by split: `train`, `test`, perhaps `validation`; see `examples_of`."""


class Devices(Mapping[DeviceId, Splits]):
    """A mapping from device id to data that holds only the ids; `load` brings one device's data.

    >>> devices = Devices((f"{i:07}" for i in range(1_000_000)), load=lambda device: {"train": [device]})
    >>> devices["0000007"], devices.ids[999_999]
    ({'train': ['0000007']}, '0999999')
    """

    def __init__(self, ids: Iterable[DeviceId], load: Callable[[DeviceId], Splits]) -> None:
        self.ids = Ids(ids)
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
    """Return any mapping of devices with its ids by position."""
    if isinstance(devices, Devices):
        return devices
    if wrong := [device for device in devices if not isinstance(device, str)]:
        raise TypeError(f"Device ids must be texts, got {wrong[0]!r}: {type(wrong[0]).__name__}.")
    return Devices(devices, devices.__getitem__)
