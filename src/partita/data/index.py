"""The index of a table: where each device's rows are, cached on disk; and the selection of devices."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from partita.data.cache import cache_paths, file_states, mode_of, write_to_first
from partita.data.splits import SPLITS, Codes, SplitRule, hold_out_by_device
from partita.errors import ConfigError

logger = logging.getLogger(__name__)

_FORMAT = 5
"""The version of the file format: an index with another one is rebuilt."""
_COUNT = np.int32
"""The type of a number of rows of one device."""
_SETTINGS = ("device", "split", "test", "validation")
"""The options that an index depends on."""


@dataclass(frozen=True)
class Index:
    """Where each device's rows are, sorted by device id: 24 bytes a device besides the ids."""

    ids: pa.Array
    """The device ids."""
    starts: np.ndarray
    """The number of each device's first row, int64."""
    counts: np.ndarray
    """The number of rows of each device (row) in each split (column), in the order of `SPLITS`, int32."""
    held_out: np.ndarray
    """The number of each device's validation rows that were held out from its training rows, int32."""

    def select(self, mask: np.ndarray) -> "Index":
        """Return the index of the devices where `mask` is true."""
        if mask.all():
            return self
        return Index(
            self.ids.filter(pa.array(mask)), self.starts[mask], self.counts[mask], self.held_out[mask]
        )

    def counts_in(self, split: str) -> np.ndarray:
        """Return the number of rows of each device in a split."""
        return self.counts[:, SPLITS.index(split)]


Batch = tuple[pa.Array, Codes, np.ndarray]
"""Rows of a table: device ids, splits before validation rows are held out, and the order to hold them out."""


def build_index(batches: Iterable[Batch], rule: SplitRule) -> Index:
    """Return the index of a whole table in the table's order.

    Args:
        batches: the rows of the table, batch by batch.
        rule: the split rule; by time, it assigns the splits here, from the number of rows.
    """
    ids: list[pa.Array] = []
    starts: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    drawn: list[np.ndarray] = []
    first = 0
    for names, splits, order in whole_devices(batches):
        begins = _run_starts(names)
        assigned = splits
        if not rule.by_time:
            assigned = hold_out_by_device(splits, order, begins, rule.options.validation)
        ids.append(names.take(pa.array(begins)))
        starts.append(begins + first)
        counts.append(np.add.reduceat(assigned[:, None] == np.arange(len(SPLITS)), begins, dtype=_COUNT))
        drawn.append(np.add.reduceat(assigned != splits, begins, dtype=_COUNT))
        first += len(names)
    held_out = np.concatenate(drawn)
    found = np.concatenate(counts)
    if rule.by_time:
        by_age = [rule.assign_by_age(int(rows)) for rows in found[:, 0]]
        found = np.array([np.bincount(splits, minlength=len(SPLITS)) for splits in by_age], _COUNT)
        held_out = found[:, SPLITS.index("validation")]
    return Index(pa.concat_arrays(ids), np.concatenate(starts), found, held_out)


def whole_devices(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the rows in batches between which no device is divided, if its rows are adjacent."""
    pending: Batch | None = None
    for batch in batches:
        names, splits, order = batch if pending is None else _joined(pending, batch)
        last = int(_run_starts(names)[-1])
        if last:
            yield names[:last], splits[:last], order[:last]
        pending = names[last:], splits[last:], order[last:]
    if pending is not None:
        yield pending


def _joined(first: Batch, second: Batch) -> Batch:
    names = pa.concat_arrays([first[0], second[0]])
    return names, np.concatenate([first[1], second[1]]), np.concatenate([first[2], second[2]])


def sort_index(index: Index) -> Index:
    """Return an index sorted by device id."""
    order = pc.call_function("array_sort_indices", [index.ids])
    places = order.to_numpy()
    return Index(index.ids.take(order), index.starts[places], index.counts[places], index.held_out[places])


def _run_starts(names: pa.Array) -> np.ndarray:
    """Return the positions at which a run of equal names begins."""
    codes = names.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.flatnonzero(codes[1:] != codes[:-1]) + 1])


class IndexCache:
    """The file of a table's index: beside the table, or in the user's cache folder if that is read-only.

    Args:
        path: the table, a file or a folder.
        files: the files that it consists of; a change of one invalidates the index.
        rule: the split rule; other rules have other indexes.
    """

    def __init__(self, path: Path, files: Sequence[Path], rule: SplitRule) -> None:
        settings = [*(getattr(rule.options, name) for name in _SETTINGS), rule.columns]
        key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]
        self._files = files
        self._paths = cache_paths(path, key=key, suffix="index")
        self._about = json.dumps([_FORMAT, settings, file_states(files)]).encode()

    def load(self) -> Index | None:
        """Return the cached index, None if there is none that is valid."""
        found = (self._load(path) for path in self._paths)
        return next((index for index in found if index is not None), None)

    def _load(self, path: Path) -> Index | None:
        try:
            with pq.ParquetFile(path, pre_buffer=False) as file:
                found = file.schema_arrow.metadata or {}
                if found.get(b"about") != self._about:
                    return None
                index = _read_index(file)
                return index if found.get(b"sha256") == _digest(index) else None
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):  # It is damaged.
            return None

    def save(self, index: Index) -> None:
        """Write the index to the first place that can be written."""
        columns: Mapping[str, Any] = {
            "device": index.ids,
            "start": index.starts,
            **{split: index.counts_in(split) for split in SPLITS},
            "held_out": index.held_out,
        }
        metadata = {"about": self._about, "sha256": _digest(index)}
        table = pa.table(columns).replace_schema_metadata(metadata)
        write = partial(pq.write_table, table, compression="zstd")
        if not write_to_first(self._paths, write, mode=mode_of(self._files)):
            logger.warning("The index `%s` cannot be written: it is built again each time.", self._paths[0])


def _digest(index: Index) -> bytes:
    """Return the sha256 of all values of an index."""
    ids = index.ids
    _, offsets, texts = ids.buffers()
    ends = np.frombuffer(offsets, np.int32)[ids.offset : ids.offset + len(ids) + 1]
    digest = hashlib.sha256(np.diff(ends).data)
    digest.update(memoryview(texts)[ends[0] : ends[-1]])
    for numbers in (index.starts, index.counts, index.held_out):
        digest.update(np.ascontiguousarray(numbers).ravel().data)
    return digest.hexdigest().encode()


def _read_index(file: pq.ParquetFile) -> Index:
    """Read an index, one column at a time: all of them together take twice the memory."""
    rows = file.metadata.num_rows
    ids = pa.concat_arrays(list(_blocks(file, "device")))
    starts, counts, held_out = (
        np.empty(rows, int),
        np.empty((rows, len(SPLITS)), _COUNT),
        np.empty(rows, _COUNT),
    )
    columns = {"start": starts, "held_out": held_out, **dict(zip(SPLITS, counts.T, strict=True))}
    for name, column in columns.items():
        first = 0
        for block in _blocks(file, name):
            column[first : first + len(block)] = block.to_numpy()
            first += len(block)
    return Index(ids, starts, counts, held_out)


def _blocks(file: pq.ParquetFile, column: str) -> Iterator[pa.Array]:
    """Yield the values of a column, some at a time, and give the memory that it took to read them back."""
    yield from (batch[column] for batch in file.iter_batches(columns=[column]))
    pa.default_memory_pool().release_unused()


def select_devices(
    index: Index, rule: SplitRule, path: Path, same_content: Callable[[int, int], bool]
) -> Index:
    """Return the index of the devices with enough rows, or of a fixed sample of them, as the options say.

    Args:
        index: the index of all devices.
        rule: the split rule, with the table's options.
        path: the table.
        same_content: returns whether any two rows between two row numbers have the same content.

    Raises:
        ConfigError: no device or too few devices are left, or one has no training or no test rows.
    """
    options = rule.options
    # Rows that are held out for validation count as training rows: a run with them has the same devices.
    rows = {"train": index.counts_in("train") + index.held_out, "test": index.counts_in("test")}
    if not ((index.counts_in("train") > 0) & (index.counts_in("test") > 0)).any():
        why = _why_none_has_both(index, rule, same_content)
        raise ConfigError(f"No device of `{path}` has both training and test rows: {why}")
    for split, minimum in (("train", options.min_train_examples), ("test", options.min_test_examples)):
        empty = np.flatnonzero(rows[split] == 0)
        if len(empty) and not minimum:
            raise ConfigError(
                f"Device {index.ids[int(empty[0])].as_py()!r} of `{path}` has no {split} rows, the first of "
                f"{len(empty)} such devices: `min_{split}_examples = 1` leaves them out."
            )
    index = index.select(
        (rows["train"] >= options.min_train_examples) & (rows["test"] >= options.min_test_examples)
    )
    if not len(index.ids):
        raise ConfigError(
            f"No device of `{path}` has at least {options.min_train_examples} training rows and "
            f"{options.min_test_examples} test rows."
        )
    if options.devices > len(index.ids):
        raise ConfigError(f"`devices` must be at most {len(index.ids)} for `{path}`, got {options.devices}.")
    return _sample(index, options.devices) if options.devices else index


def _why_none_has_both(index: Index, rule: SplitRule, same_content: Callable[[int, int], bool]) -> str:
    """Return why no device has both training and test rows, judging by the device with the most rows."""
    largest = int(index.counts.sum(axis=1).argmax())
    start, rows = int(index.starts[largest]), int(index.counts[largest].sum())
    if rule.split_column:
        return f"see its column `{rule.split_column}`."
    if not rule.options.test:
        return "`test` is 0."
    if rows == 1:
        return "each device has one row."
    if rule.key_column and not rule.by_time:
        return f"its column `{rule.key_column}` decides, and rows with equal values are in the same split."
    if rule.by_content and same_content(start, start + rows):
        return (
            "rows with the same content are in the same split. Add a column `id` to distinguish them, or a "
            "column `split`."
        )
    return f"the largest device has {rows} rows. Add a column `split`."


def _sample(index: Index, devices: int) -> Index:
    """Return the devices whose ids have the smallest digests: adding devices changes the sample little."""
    digests = [hashlib.sha256(device.encode()).digest() for device in index.ids.to_pylist()]
    mask = np.zeros(len(digests), bool)
    mask[sorted(range(len(digests)), key=digests.__getitem__)[:devices]] = True
    return index.select(mask)
