"""Which devices of a table are taken: those with enough rows, and of them a fixed sample."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from partita.data.index import Index
from partita.data.sides import Sides
from partita.errors import ConfigError


def chosen(index: Index, sides: Sides, path: Path, alike: Callable[[int, int], bool]) -> Index:
    """Return the devices that a table's options take.

    Args:
        index: all devices.
        sides: how sides are told, and the options.
        path: the table.
        alike: whether some of the rows from one up to another have the same content.

    Raises:
        ConfigError: there are none such, fewer than asked for, or one without rows on a side.
    """
    options = sides.options
    if not ((index.on("train") > 0) & (index.on("test") > 0)).any():
        why = _why_none_has_both(index, sides, alike)
        raise ConfigError(f"No device of `{path}` has both training and test rows: {why}")
    for side, least in (("train", options.least_train), ("test", options.least_test)):
        empty = np.flatnonzero(index.on(side) == 0)
        if len(empty) and not least:
            raise ConfigError(
                f"Device {index.ids[int(empty[0])].as_py()!r} of `{path}` has no {side} rows, one of "
                f"{len(empty)} without: `least_{side} = 1` leaves them out."
            )
    index = index.taken((index.on("train") >= options.least_train) & (index.on("test") >= options.least_test))
    if not len(index.ids):
        raise ConfigError(f"No device of `{path}` has as many rows as asked for.")
    if options.devices > len(index.ids):
        raise ConfigError(f"`{path}` has {len(index.ids)} devices to take, fewer than `devices`.")
    return _sample(index, options.devices) if options.devices else index


def _why_none_has_both(index: Index, sides: Sides, alike: Callable[[int, int], bool]) -> str:
    """Return why no device has rows on both sides, by the one with the most rows."""
    largest = int(index.counts.sum(axis=1).argmax())
    start, rows = int(index.starts[largest]), int(index.counts[largest].sum())
    if sides.split:
        return f"look at its column `{sides.split}`."
    if not sides.options.test:
        return "`test` is 0."
    if rows == 1:
        return "each has one row."
    if sides.named and not sides.by_time:
        return f"its column `{sides.named}` tells the sides, and equal values go to the same one."
    if sides.by_content and alike(start, start + rows):
        return (
            "rows with the same content go to the same side. A column `id` would tell them apart, or a "
            "column `split` say the sides."
        )
    return f"the most rows of one are {rows}. A column `split` would say the sides."


def _sample(index: Index, devices: int) -> Index:
    """Return some devices, by digests of their ids: others that come later change little."""
    digests = [hashlib.sha256(device.encode()).digest() for device in index.ids.to_pylist()]
    mask = np.zeros(len(digests), bool)
    mask[sorted(range(len(digests)), key=digests.__getitem__)[:devices]] = True
    return index.taken(mask)
