"""The devices that a page draws and lists: all of them, or a fixed sample where there are many.

A page of 100,000 devices would be slow to write and to open, and its points could not be told apart. Means,
differences, intervals and counts are over all devices in any case.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from partita.data.arrow import Table, rows_among
from partita.protocol import DeviceId, derive_seed

MAX_DRAWN = 5_000
"""The number of devices up to which a page draws all of them."""


@dataclass(frozen=True)
class Sample:
    """The devices that a page draws."""

    total: int = 0
    """Number of all devices."""
    devices: frozenset[DeviceId] | None = None
    """The devices of the sample; None if all are drawn."""

    def __contains__(self, device: DeviceId) -> bool:
        return self.devices is None or device in self.devices

    def rows_of(self, table: Table) -> Table:
        """Return the rows of a table with these devices."""
        return table if self.devices is None else rows_among(table, "device", self.devices)

    @property
    def note(self) -> str:
        """A sentence for captions, with a space before it; empty if all devices are drawn."""
        return "" if self.devices is None else f" Drawn: {self._words}."

    @property
    def explanation(self) -> str:
        """Sentences for the page, empty if all devices are drawn."""
        if self.devices is None:
            return ""
        return (
            f"Charts of devices and the table of devices show {self._words}, those with the smallest hashes "
            "of their ids. Means, differences, intervals and counts are over all devices, and "
            "`devices.parquet` has every one."
        )

    @property
    def _words(self) -> str:
        return f"a fixed sample of {len(self.devices or ()):,} of {self.total:,} devices"


ALL = Sample()
"""The sample that has all devices."""


def sample_among(devices: Iterable[DeviceId]) -> Sample:
    """Return the devices to draw; of more than `MAX_DRAWN`, those with the smallest hashes of their ids.

    The hashes are those of `evaluate.sample`.
    """
    every = set(devices)
    if len(every) <= MAX_DRAWN:
        return Sample(len(every))
    drawn = heapq.nsmallest(MAX_DRAWN, every, key=lambda device: derive_seed(0, "sample", device))
    return Sample(len(every), frozenset(drawn))


def ids_in(tables: Iterable[Table]) -> set[DeviceId]:
    """Return the ids of all devices in some tables of measurements."""
    return {device for table in tables for device in table["device"].unique().to_pylist()}
