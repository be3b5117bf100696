"""The training rows of all seen devices of a table, which values such as a mean are derived from."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from partita.data.splits import SPLITS, hold_out_by_device
from partita.data.table import DeviceTable
from partita.data.unseen import are_seen

_ROWS_AT_A_TIME = 65_536
"""Rows of seen devices that are read at a time, unless a device has more."""


def training_tables(source: DeviceTable, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield some columns of the training rows of all seen devices, many rows at a time.

    The tables are the same as those of a file without the rows of unseen devices.
    """
    index = source.index.select(are_seen(source.index.ids, source.unseen))
    order = np.argsort(index.starts)
    starts, rows = index.starts[order], index.counts.sum(axis=1)[order]
    begins = starts - _unseen_rows_before(source, starts)
    ends = begins + rows
    first = 0
    for last in range(1, len(order) + 1):
        is_adjacent = last < len(order) and begins[last] == ends[last - 1]
        if not is_adjacent or ends[last] - begins[first] > _ROWS_AT_A_TIME:
            table = _read_devices(source, starts[first:last], rows[first:last], columns)
            yield table.filter(_is_training(source, table, rows[first:last])).select(list(columns))
            first = last


def _unseen_rows_before(source: DeviceTable, starts: np.ndarray) -> np.ndarray:
    """Return the number of rows of unseen devices, selected or not, before each row number."""
    unseen = source.whole_index.select(~are_seen(source.whole_index.ids, source.unseen))
    order = np.argsort(unseen.starts)
    before = np.append(0, np.cumsum(unseen.counts.sum(axis=1)[order]))
    return before[np.searchsorted(unseen.starts[order], starts)]


def _read_devices(
    source: DeviceTable, starts: np.ndarray, rows: np.ndarray, columns: Sequence[str]
) -> pa.Table:
    """Return some columns of the rows of devices, given by their first rows and their numbers of rows.

    Rows of other devices between them are not read, but for those in the same row groups.
    """
    ends = starts + rows
    gaps = np.flatnonzero(starts[1:] != ends[:-1])
    spans = zip(starts[np.append(0, gaps + 1)], ends[np.append(gaps, -1)], strict=True)
    tables = [source.read(int(begin), int(end), columns) for begin, end in spans]
    if len(tables) == 1:
        return tables[0]
    # A part of a row group would keep all of it in memory: `take` copies.
    return pa.concat_tables(table.take(pa.array(np.arange(len(table)))) for table in tables)


def _is_training(source: DeviceTable, table: pa.Table, rows: np.ndarray) -> pa.Array:
    """Return whether each row is a training row; `rows` has the number of rows of each device."""
    rule, options, begins = source.rule, source.options, np.cumsum(rows) - rows
    if rule.by_time:
        devices = zip(begins.tolist(), rows.tolist(), strict=True)
        splits = np.concatenate([rule.assign(table.slice(begin, count)) for begin, count in devices])
    else:
        drawn, order = rule.draw(table)
        splits = hold_out_by_device(drawn, order, begins, options.validation)
    is_training = splits == SPLITS.index("train")
    if options.max_examples:
        counted = np.cumsum(is_training)
        before = np.repeat(np.append(0, counted)[begins], rows)
        is_training &= counted - before <= options.max_examples
    return pa.array(is_training)
