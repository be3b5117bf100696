"""Simulated devices with label skew for data without devices, by the partitioners of `flwr-datasets`.

Rows are shuffled first, as Flower does: the partitioners assign the rows of a label in their order, and for a
table with all training rows first some devices would get nothing but test rows.

Bayesian Nonparametric Federated Learning of Neural Networks (Dirichlet distribution)
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

from partita.data.files import ParquetFiles, TableStream, open_files, sorted_device_ids
from partita.data.importers.source import Imported, Survey
from partita.data.sort import sort_stream
from partita.data.writing import ProgressFn, check_new, no_progress
from partita.errors import ConfigError


def dirichlet(
    source: Path,
    out: Path,
    *,
    devices: int = 100,
    alpha: float = 0.5,
    label: str = "label",
    min_examples: int = 10,
    seed: int = 1,
    progress: ProgressFn = no_progress,
) -> Imported:
    """Assign the rows of each label to devices in shares drawn from a Dirichlet distribution.

    Args:
        source: a Parquet file, or a folder of them, without a column `device`.
        out: the table to write, sorted by device id.
        devices: the number of devices.
        alpha: the concentration: with a small value each device has few labels, with a large one all devices
            have about the same shares.
        label: the column of labels: strings or whole numbers.
        min_examples: the minimum number of rows per device; shares are drawn again until all devices have it.
        seed: the same seed gives the same devices.
        progress: the progress callback.

    Raises:
        ConfigError: a value or the table is invalid, or no draw gave every device enough rows.
    """
    _check_counts(devices=devices, min_examples=min_examples, seed=seed)
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(f"`alpha` must be a number above 0, got {alpha}.")
    files, labels = _open(source, out, label)
    if devices * min_examples > files.rows:
        raise ConfigError(
            _too_few(source, files.rows, f"{devices} devices with at least {min_examples} each")
        )
    partitioner = _partitioners().DirichletPartitioner(
        num_partitions=devices,
        partition_by="label",
        alpha=float(alpha),
        min_partition_size=min_examples,
        shuffle=False,
        seed=seed,
    )
    order = _permutation(files.rows, seed)
    owners = np.empty(files.rows, np.int64)
    try:
        owners[order] = _assign(partitioner, labels[order])
    except ValueError:
        raise ConfigError(
            f"No draw with `alpha` = {alpha} gave each of {devices} devices at least {min_examples} rows of "
            f"{files.rows}: raise `alpha`, or lower `min_examples` or `devices`."
        ) from None
    return _write(files, owners, out, progress)


def shards(
    source: Path,
    out: Path,
    *,
    devices: int = 100,
    shards_per_device: int = 2,
    label: str = "label",
    seed: int = 1,
    progress: ProgressFn = no_progress,
) -> Imported:
    """Sort the rows by label, cut them into shards of equal size and assign the shards to devices.

    If the rows cannot be divided evenly, some shards have one row more: no row is lost.

    Args:
        source: a Parquet file, or a folder of them, without a column `device`.
        out: the table to write, sorted by device id.
        devices: the number of devices.
        shards_per_device: the number of shards per device: each has about as many labels.
        label: the column of labels: strings or whole numbers.
        seed: the same seed gives the same devices.
        progress: the progress callback.

    Raises:
        ConfigError: a value or the table is invalid.
    """
    _check_counts(devices=devices, shards_per_device=shards_per_device, seed=seed)
    files, labels = _open(source, out, label)
    count = devices * shards_per_device
    if count > files.rows:
        raise ConfigError(
            _too_few(source, files.rows, f"{devices} devices with {shards_per_device} shards each")
        )
    # The partitioner drops rows that do not fill a shard: here each of its rows is a whole shard.
    partitioner = _partitioners().ShardPartitioner(
        num_partitions=devices,
        partition_by="label",
        num_shards_per_partition=shards_per_device,
        shuffle=False,
        seed=seed,
    )
    owners_of_shards = _assign(partitioner, np.arange(count))
    order = _permutation(files.rows, seed)
    by_label = order[np.argsort(labels[order], kind="stable")]
    sizes = [len(shard) for shard in np.array_split(by_label, count)]
    owners = np.empty(files.rows, np.int64)
    owners[by_label] = np.repeat(owners_of_shards, sizes)
    return _write(files, owners, out, progress)


def simulated_ids(devices: int) -> list[str]:
    """Return device ids that sort like their numbers.

    >>> simulated_ids(2), simulated_ids(10_001)[9:11]
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


def _open(source: Path, out: Path, label: str) -> tuple[ParquetFiles, np.ndarray]:
    """Return a table, and its labels as ranks."""
    check_new(out)
    files = open_files(source)
    if "device" in files.schema.names:
        raise ConfigError(f"`{source}` has devices already, in its column `device`.")
    files.require_column(label)
    kind = files.schema.field(label).type
    if not _is_label(kind):
        raise ConfigError(f"`{label}` of `{source}` must hold strings or whole numbers, got {kind}.")
    return files, _ranks(files, label)


def _is_label(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    strings = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    kinds = (pa.types.is_integer, pa.types.is_boolean, *strings)
    return any(is_kind(kind) for is_kind in kinds)


def _ranks(files: ParquetFiles, label: str) -> np.ndarray:
    chunks = [values.dictionary_encode() for values in files.column_values(label)]
    if not chunks:
        return np.empty(0, np.int64)
    labels = pa.chunked_array(chunks).unify_dictionaries().combine_chunks()
    rank = {value: number for number, value in enumerate(sorted(labels.dictionary.to_pylist()))}
    ranks = np.array([rank[value] for value in labels.dictionary.to_pylist()])
    return ranks[labels.indices.to_numpy()]


def _permutation(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, rows]).permutation(rows)


def _partitioners() -> Any:
    try:
        from flwr_datasets import partitioner
    except ImportError:
        raise ConfigError("Simulated devices need flwr-datasets: pip install 'partita[hf]'.") from None
    return partitioner


def _assign(partitioner: Any, labels: np.ndarray) -> np.ndarray:
    """Return the number of each row's device."""
    from datasets import Dataset

    partitioner.dataset = Dataset(pa.table({"label": labels, "row": np.arange(len(labels))}))
    owners = np.full(len(labels), -1)
    with warnings.catch_warnings():
        # The partitioner warns about every draw that it repeats.
        warnings.simplefilter("ignore")
        for number in range(partitioner.num_partitions):
            owners[partitioner.load_partition(number).with_format("arrow")[:]["row"].to_numpy()] = number
    if (owners < 0).any():
        raise ValueError("some rows have no device")
    return owners


def _write(files: ParquetFiles, owners: np.ndarray, out: Path, progress: ProgressFn) -> Imported:
    ids = pa.array(simulated_ids(int(owners.max()) + 1))
    schema = files.schema.insert(0, pa.field("device", pa.string()))
    stream = TableStream(schema, files.rows, _with_devices(files, ids, owners))
    rows = sort_stream(stream, out, progress=progress)
    return Imported(Survey(sorted_device_ids(out)), rows)


def _with_devices(files: ParquetFiles, ids: pa.Array, owners: np.ndarray) -> Iterator[pa.Table]:
    first = 0
    for table in files.stream().tables:
        own = ids.take(pa.array(owners[first : first + len(table)]))
        first += len(table)
        yield table.add_column(0, "device", own)
