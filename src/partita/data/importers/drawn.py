"""Devices where the data has none: rows dealt by label, with the partitioners of Flower's `flwr-datasets`.

Rows are shuffled first, as Flower does: the partitioners give out rows of a label in their order, and a table
that has its training rows before its test rows would give some devices nothing else.

Bayesian Nonparametric Federated Learning of Neural Networks (the Dirichlet draw)
    M. Yurochkin, M. Agarwal, S. Ghosh, K. Greenewald, T. N. Hoang, Y. Khazaeni. ICML 2019.
    https://arxiv.org/abs/1905.12022
Communication-Efficient Learning of Deep Networks from Decentralized Data (shards)
    H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. A. y Arcas. AISTATS 2017.
    https://arxiv.org/abs/1602.05629
"""

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from partita.data.importers.importing import Imported
from partita.data.importers.source import Survey, Tick
from partita.data.reading import Files, Stream, ids_in, open_files
from partita.data.sort import check_new, silent, sort_stream
from partita.errors import ConfigError


def dirichlet(
    source: Path,
    out: Path,
    *,
    devices: int = 100,
    alpha: float = 0.5,
    by: str = "label",
    least: int = 10,
    seed: int = 1,
    tick: Tick = silent,
) -> Imported:
    """Deal the rows of each label to devices in shares drawn from a Dirichlet distribution.

    Args:
        source: a Parquet file, or a folder of them, without a column `device`.
        out: the table to write, in the order of device ids.
        devices: how many devices there will be.
        alpha: how alike devices are: small, and each has few labels; large, and all have the same shares.
        by: the column that holds the label: texts or whole numbers.
        least: the fewest rows that a device may have; shares are drawn anew until all have as many.
        seed: the same seed draws the same devices.
        tick: told of the progress.

    Raises:
        ConfigError: a value or a table that will not do, or no draw gave every device enough rows.
    """
    _check_counts(devices=devices, least=least, seed=seed)
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(f"`alpha` must be a number above 0, got {alpha}.")
    files, labels = _opened(source, out, by)
    if devices * least > files.rows:
        raise ConfigError(_too_few(source, files.rows, f"{devices} devices with at least {least} each"))
    partitioner = _partitioners().DirichletPartitioner(
        num_partitions=devices,
        partition_by="label",
        alpha=float(alpha),
        min_partition_size=least,
        shuffle=False,
        seed=seed,
    )
    order = _shuffled(files.rows, seed)
    owners = np.empty(files.rows, np.int64)
    try:
        owners[order] = _dealt(partitioner, labels[order])
    except ValueError:
        raise ConfigError(
            f"No draw with `alpha` {alpha} gave each of {devices} devices at least {least} rows of "
            f"{files.rows}: raise `alpha`, or lower `least` or `devices`."
        ) from None
    return _write(files, owners, out, tick)


def shards(
    source: Path,
    out: Path,
    *,
    devices: int = 100,
    per_device: int = 2,
    by: str = "label",
    seed: int = 1,
    tick: Tick = silent,
) -> Imported:
    """Sort the rows by label, cut them in shards of one size and deal the shards to devices.

    Where the rows cannot be cut evenly, some shards have one row more: no row is lost.

    Args:
        source: a Parquet file, or a folder of them, without a column `device`.
        out: the table to write, in the order of device ids.
        devices: how many devices there will be.
        per_device: how many shards each has: about as many labels.
        by: the column that holds the label: texts or whole numbers.
        seed: the same seed draws the same devices.
        tick: told of the progress.

    Raises:
        ConfigError: a value or a table that will not do.
    """
    _check_counts(devices=devices, per_device=per_device, seed=seed)
    files, labels = _opened(source, out, by)
    count = devices * per_device
    if count > files.rows:
        raise ConfigError(_too_few(source, files.rows, f"{devices} devices with {per_device} shards each"))
    # The partitioner leaves out rows that do not fill a shard: it deals whole shards here, one label each.
    partitioner = _partitioners().ShardPartitioner(
        num_partitions=devices,
        partition_by="label",
        num_shards_per_partition=per_device,
        shuffle=False,
        seed=seed,
    )
    owners_of_shards = _dealt(partitioner, np.arange(count))
    order = _shuffled(files.rows, seed)
    by_label = order[np.argsort(labels[order], kind="stable")]
    sizes = [len(shard) for shard in np.array_split(by_label, count)]
    owners = np.empty(files.rows, np.int64)
    owners[by_label] = np.repeat(owners_of_shards, sizes)
    return _write(files, owners, out, tick)


def drawn_ids(devices: int) -> list[str]:
    """Return the ids of so many devices, which sort as their numbers do.

    >>> drawn_ids(2), drawn_ids(10_001)[9:11]
    (['device-0000', 'device-0001'], ['device-00009', 'device-00010'])
    """
    width = max(4, len(str(devices - 1)))
    return [f"device-{number:0{width}}" for number in range(devices)]


def _check_counts(*, seed: int, **counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"`{name}` must be at least 1, got {count}.")
    if seed < 0:
        raise ConfigError(f"`seed` must be at least 0, got {seed}.")


def _too_few(source: Path, rows: int, wanted: str) -> str:
    return f"`{source}` has {rows} rows, too few for {wanted}."


def _opened(source: Path, out: Path, by: str) -> tuple[Files, np.ndarray]:
    """Return a table, and its labels as numbers in the order of the labels."""
    check_new(out)
    files = open_files(source)
    if "device" in files.schema.names:
        raise ConfigError(f"`{source}` has a column `device` already: there is nothing to draw.")
    files.need(by)
    kind = files.schema.field(by).type
    if not _is_label(kind):
        raise ConfigError(f"`{by}` of `{source}` must hold texts or whole numbers, it holds {kind}.")
    return files, _codes(files, by)


def _is_label(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    kinds = (pa.types.is_integer, pa.types.is_boolean, *texts)
    return any(is_one(kind) for is_one in kinds)


def _codes(files: Files, by: str) -> np.ndarray:
    chunks = [values.dictionary_encode() for values in files.full(by)]
    if not chunks:
        return np.empty(0, np.int64)
    labels = pa.chunked_array(chunks).unify_dictionaries().combine_chunks()
    rank = {label: place for place, label in enumerate(sorted(labels.dictionary.to_pylist()))}
    ranks = np.array([rank[label] for label in labels.dictionary.to_pylist()])
    return ranks[labels.indices.to_numpy()]


def _shuffled(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, rows]).permutation(rows)


def _partitioners() -> Any:
    try:
        from flwr_datasets import partitioner
    except ImportError:
        raise ConfigError("Drawing devices needs flwr-datasets: pip install 'partita[hf]'.") from None
    return partitioner


def _dealt(partitioner: Any, labels: np.ndarray) -> np.ndarray:
    """Return the number of the device that each row is dealt to."""
    from datasets import Dataset

    partitioner.dataset = Dataset(pa.table({"label": labels, "row": np.arange(len(labels))}))
    owners = np.full(len(labels), -1)
    with warnings.catch_warnings():
        # The partitioner warns of every draw that it repeats.
        warnings.simplefilter("ignore")
        for number in range(partitioner.num_partitions):
            owners[partitioner.load_partition(number).with_format("arrow")[:]["row"].to_numpy()] = number
    if (owners < 0).any():
        raise ValueError("some rows were dealt to nobody")
    return owners


def _write(files: Files, owners: np.ndarray, out: Path, tick: Tick) -> Imported:
    ids = pa.array(drawn_ids(int(owners.max()) + 1))
    schema = files.schema.insert(0, pa.field("device", pa.string()))
    stream = Stream(schema, files.rows, _with_devices(files, ids, owners))
    rows = sort_stream(stream, out, tick=tick)
    return Imported(Survey(ids_in(out)), rows)


def _with_devices(files: Files, ids: pa.Array, owners: np.ndarray) -> Iterator[pa.Table]:
    first = 0
    for table in files.stream().tables:
        own = ids.take(pa.array(owners[first : first + len(table)]))
        first += len(table)
        yield table.add_column(0, "device", own)
