"""The index of a table: where each device's rows stand, built once and kept beside the table."""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from partita.data.cache import cache_folder, kept_name, state_of
from partita.data.sides import SIDES, Sides

logger = logging.getLogger(__name__)

_FORMAT = 2
"""Another number, and indexes are built anew."""


@dataclass(frozen=True)
class Index:
    """Where each device's rows stand."""

    ids: pa.Array
    """Whose rows they are, in the order of ids."""
    starts: np.ndarray
    """The number of the first row of each."""
    counts: np.ndarray
    """How many rows of each side there are, a column each in the order of `SIDES`."""

    def taken(self, mask: np.ndarray) -> "Index":
        """Return the index of some devices."""
        return Index(self.ids.filter(pa.array(mask)), self.starts[mask], self.counts[mask])

    def on(self, side: str) -> np.ndarray:
        """Return how many rows of a side each device has."""
        return self.counts[:, SIDES.index(side)]


def build_index(batches: Iterable[tuple[pa.Array, np.ndarray]], sides: Sides) -> Index:
    """Return the index of a whole table, from the ids and the sides of its rows, a batch after the other."""
    ids: list[pa.Array] = []
    starts: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    first = 0
    for names, places in batches:
        begins = _begins(names)
        on = np.stack([places == place for place in range(len(SIDES))], axis=1).astype(np.int64)
        ids.append(names.take(pa.array(begins)))
        starts.append(begins + first)
        counts.append(np.add.reduceat(on, begins))
        first += len(names)
    names = pa.concat_arrays(ids)
    # A device whose rows a batch's end has cut has two entries: they are one.
    begins = _begins(names)
    whole = np.add.reduceat(np.concatenate(counts), begins)
    if sides.by_time:
        whole = np.array([np.bincount(sides.by_age(int(rows)), minlength=len(SIDES)) for rows in whole[:, 0]])
    return Index(names.take(pa.array(begins)), np.concatenate(starts)[begins], whole)


def in_order(index: Index) -> Index:
    """Return an index in the order of ids."""
    places = pa.table({"id": index.ids, "place": np.arange(len(index.ids))}).sort_by("id")["place"]
    order = places.to_numpy()
    return Index(index.ids.take(pa.array(order)), index.starts[order], index.counts[order])


def _begins(names: pa.Array) -> np.ndarray:
    """Return the places at which another name begins."""
    codes = names.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.flatnonzero(codes[1:] != codes[:-1]) + 1])


class KeptIndex:
    """A table's index on disk: beside the table, or in the user's cache folder where that cannot be written.

    Args:
        path: the table, a file or a folder.
        files: the files that it is made of; a change of one makes the index another.
        sides: which sides rows are on; another index for other sides.
    """

    def __init__(self, path: Path, files: Sequence[Path], sides: Sides) -> None:
        settings = [*(getattr(sides.options, name) for name in _SETTINGS), sides.columns]
        path = path.resolve()
        key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]
        self._places = [
            path.with_name(f"{path.name}.{key}.index"),
            cache_folder() / kept_name(path, of=key, ending="index"),
        ]
        self._about = json.dumps([_FORMAT, settings, state_of(files)]).encode()

    def get(self, build: Callable[[], Index]) -> Index:
        """Return the index that is kept, or build it and keep it."""
        for place in self._places:
            known = self._load(place)
            if known is not None:
                return known
        index = build()
        self._save(index)
        return index

    def _load(self, place: Path) -> Index | None:
        try:
            table = pq.read_table(place)
        except (OSError, pa.ArrowInvalid):
            return None
        if (table.schema.metadata or {}).get(b"about") != self._about:
            return None
        counts = np.stack([table[side].to_numpy() for side in SIDES], axis=1)
        return Index(table["device"].combine_chunks(), table["start"].to_numpy(), counts)

    def _save(self, index: Index) -> None:
        columns: Mapping[str, Any] = {
            "device": index.ids,
            "start": index.starts,
            **{side: index.on(side) for side in SIDES},
        }
        table = pa.table(columns).replace_schema_metadata({"about": self._about})
        for place in self._places:
            scratch = place.with_name(f"{place.name}.{os.getpid()}.tmp")
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(table, scratch, compression="zstd")
                scratch.replace(place)
            except OSError:
                with contextlib.suppress(OSError):
                    scratch.unlink(missing_ok=True)
                continue
            return
        logger.warning("The index of `%s` can be kept nowhere: it is built anew each time.", self._places[0])


_SETTINGS = ("device", "split", "test", "validation")
"""The options that an index depends on."""
