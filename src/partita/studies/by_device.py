"""Values by device, packed: a comparison of many cells holds a few bytes for each device of a cell.

The ids of devices are held once for all cells. Everything else of a cell's table is let go when its values
have been read.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from partita.data.arrow import Table, distinct, rows_where, tuples_of
from partita.protocol import DeviceId
from partita.studies.statistics import DeviceMetrics

Value = TypeVar("Value")
Positions = dict[DeviceId, int]
"""The position of each device; grows with the devices of further cells."""


class ByDevice(Mapping[DeviceId, Value], Generic[Value]):
    """A value for some devices, in the order of their positions.

    >>> values = ByDevice({"a": 0, "b": 1, "c": 2}, bytearray([1, 0, 1]), [0.5, 0.0, 2.5].__getitem__)
    >>> dict(values), len(values), "b" in values
    ({'a': 0.5, 'c': 2.5}, 2, False)

    Args:
        positions: the position of each device.
        known: for each position 1 or 0, whether its device has a value; not those of devices added later.
        value: returns the value at a position.
    """

    def __init__(self, positions: Positions, known: bytearray, value: Callable[[int], Value]) -> None:
        self._positions = positions
        self._known = known
        self._value = value
        self._count = sum(known)

    def __getitem__(self, device: DeviceId) -> Value:
        if device not in self:
            raise KeyError(device)
        return self._value(self._positions[device])

    def __contains__(self, device: object) -> bool:
        position = self._positions.get(device) if isinstance(device, str) else None
        return position is not None and position < len(self._known) and bool(self._known[position])

    def __iter__(self) -> Iterator[DeviceId]:
        # The positions of a dict are those of its keys; the first ones are those that were there before.
        return (device for device, is_known in zip(self._positions, self._known, strict=False) if is_known)

    def __len__(self) -> int:
        return self._count


def metrics_by_stage(
    table: Table, column: str, summary: Mapping[str, Any], positions: Positions
) -> dict[str, DeviceMetrics]:
    """Return a metric and its weight by stage and device, on the split that counts.

    Args:
        table: the measurements of a run.
        column: the metric.
        summary: names the split, and the stages that failed, which have no metric.
        positions: the positions of devices; new ones are added, in place.
    """
    own = rows_where(table, "split", value=summary["split"])
    failed = summary.get("failed", {})
    found = {
        stage: _metrics(rows_where(own, "stage", value=stage), column, positions)
        for stage in distinct(own, "stage")
        if stage not in failed
    }
    return {stage: metrics for stage, metrics in found.items() if metrics}


def _metrics(table: Table, column: str, positions: Positions) -> ByDevice[tuple[float, int]]:
    known, (metrics, weights) = _room(table, positions, "d", "q")
    for device, metric, weight in tuples_of(table, "device", column, "weight"):
        if metric is not None:
            position = positions[device]
            known[position], metrics[position], weights[position] = 1, metric, weight
    return ByDevice(positions, known, lambda position: (metrics[position], weights[position]))


def training_examples(table: Table, positions: Positions) -> ByDevice[int]:
    """Return the number of training examples of each device of a table, 0 without any.

    Args:
        table: the measurements of a run.
        positions: the positions of devices; new ones are added, in place.
    """
    known, (examples,) = _room(table, positions, "q")
    for device, split, count in tuples_of(table, "device", "split", "examples"):
        known[positions[device]] = 1
        if split == "train":
            examples[positions[device]] = count
    return ByDevice(positions, known, examples.__getitem__)


def _room(table: Table, positions: Positions, *kinds: str) -> tuple[bytearray, list["array[Any]"]]:
    """Return room for a value of each kind at every position; the devices of a table are added, in place."""
    for device in distinct(table, "device"):
        positions.setdefault(device, len(positions))
    return bytearray(len(positions)), [array(kind, bytes(8 * len(positions))) for kind in kinds]
