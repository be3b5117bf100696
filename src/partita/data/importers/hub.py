"""Any dataset of the `datasets` library: on the Hugging Face Hub, in data files, or saved to disk."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from partita.data.arrow import check_id_type, id_strings
from partita.data.files import TableStream, first_line, sorted_device_ids
from partita.data.importers.source import Imported, Survey
from partita.data.rows import RowError
from partita.data.sort import sort_stream
from partita.data.splits import SPLITS
from partita.data.writing import ProgressFn, TableWriter, check_new, no_progress
from partita.errors import ConfigError, needed

if TYPE_CHECKING:
    from datasets import Dataset

_ROWS = 100
"""Rows read at a time: their media files are loaded into memory."""
_FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".arrow": "arrow"}


@dataclass(frozen=True)
class ImportedWithoutDevices:
    """The result of an import without devices."""

    rows: int

    def lines(self) -> list[str]:
        """Return the number of rows, and the commands that assign them to devices."""
        return [
            f"Wrote {self.rows:,} rows without devices: `partita import dirichlet` or `shards` assigns them "
            "to simulated devices."
        ]


def import_hub(
    name: str,
    out: Path,
    *,
    device: str = "",
    split: str = "",
    config: str = "",
    revision: str = "",
    cache: str = "",
    progress: ProgressFn = no_progress,
) -> Imported | ImportedWithoutDevices:
    """Write a dataset to `out`, a Parquet table sorted by device id.

    Images and audio are copied without decoding them. The splits become the column `split`, unless there is
    only `train` or one split was selected.

    Args:
        name: a name on the Hub, a folder or a file of data, or a folder written by `save_to_disk`.
        out: the table to write.
        device: the column of device ids; it becomes `device`, a string. Default: the table has no devices,
            and `dirichlet` or `shards` can assign its rows.
        split: the one split to import. Default: all.
        config: the configuration to load, of a dataset that has several.
        revision: the branch, tag or commit on the Hub.
        cache: the folder for downloads. Default: that of the `datasets` library.
        progress: the progress callback.

    Raises:
        ConfigError: `out` exists, the dataset cannot be loaded, or it has no such column or split.
    """
    check_new(out)
    loaded = _load(name, {"name": config, "revision": revision, "cache_dir": cache})
    data_set = _DataSet(name, _parts(name, loaded, split), device)
    data_set.check()
    rows = sum(len(part) for part in data_set.parts.values())
    if not device:
        _write(TableStream(data_set.schema(), rows, data_set.tables()), out, progress)
        return ImportedWithoutDevices(rows)
    sort_stream(TableStream(data_set.schema(), rows, data_set.tables()), out, progress=progress)
    return Imported(Survey(sorted_device_ids(out)), rows)


def _load(name: str, options: Mapping[str, str]) -> Any:
    datasets = needed("datasets", by="`partita import hf`", extra="hf")
    given: dict[str, Any] = {option: value for option, value in options.items() if value}
    path = Path(name)
    try:
        if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
            return datasets.load_from_disk(name)
        if path.is_file():
            if path.suffix not in _FORMATS:
                raise ValueError(f"a file must be one of {', '.join(_FORMATS)}")
            return datasets.load_dataset(_FORMATS[path.suffix], data_files=name, **given)
        return datasets.load_dataset(name, **given)
    except Exception as error:  # The library has a reader for each format, each with its own errors.
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise ConfigError(
            f"The dataset {name!r} cannot be loaded: {first_line(cause)} "
            "It must be a name on the Hub, a folder or file of data, or a folder written by `save_to_disk`."
        ) from error


def _parts(name: str, loaded: Any, split: str) -> dict[str, "Dataset"]:
    """Return the data by the value of the column `split`, "" if there will be no such column."""
    single = not isinstance(loaded, dict)
    parts: dict[str, Dataset] = {str(loaded.split or "train"): loaded} if single else dict(loaded)
    splits = ", ".join(parts)
    if split and split not in parts:
        raise ConfigError(f"The dataset {name!r} has no split {split!r}. Its splits: {splits}.")
    if split or single or list(parts) == ["train"]:
        return {"": parts[split or next(iter(parts))]}
    if other := [part for part in parts if part not in SPLITS]:
        raise ConfigError(
            f"The dataset {name!r} has the splits {splits}: select the one to import with `split`, since "
            f"{other[0]!r} is none of {', '.join(SPLITS)}."
        )
    return parts


@dataclass(frozen=True)
class _DataSet:
    """A loaded dataset, whose rows are read as they are stored."""

    name: str
    parts: Mapping[str, "Dataset"]
    device: str

    def check(self) -> None:
        """Raise a `ConfigError` if a column is missing, has a wrong type or a name that the table needs."""
        features = self._features()
        if self.device:
            if self.device not in features:
                columns = ", ".join(features)
                raise ConfigError(f"{self.name!r} has no column {self.device!r}. Its columns: {columns}.")
            check_id_type(features.arrow_schema.field(self.device).type, self.device, repr(self.name))
        elif "device" in features:
            raise ConfigError(f"{self.name!r} has a column `device`: import it with `device=device`.")
        if taken := sorted(set(self._added()) & (set(features) - {self.device})):
            raise ConfigError(f"{self.name!r} has a column `{taken[0]}` already, which the table needs.")
        for split, part in self.parts.items():
            if part.features != features:
                raise ConfigError(f"Split {split!r} of {self.name!r} has other columns than the first split.")

    def schema(self) -> pa.Schema:
        """Return the table's schema; `datasets` can open it, too."""
        from datasets import Features, Value

        content = {column: kind for column, kind in self._features().items() if column != self.device}
        schema = Features({**{column: Value("string") for column in self._added()}, **content}).arrow_schema
        return pa.schema([field.with_type(_stored(field.type)) for field in schema], schema.metadata)

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows, split by split."""
        schema = self.schema()
        for split, part in self.parts.items():
            first = 0
            for batch in part.with_format("arrow").iter(_ROWS):
                where = f"{self.name!r}, {f'split {split!r}, ' if split else ''}row"
                columns: dict[str, Any] = self._content(batch, f"{where}s from {first}")
                if self.device:
                    try:
                        columns["device"] = id_strings(columns.pop(self.device), self.device)
                    except RowError as error:
                        row = first + error.row
                        raise ConfigError(
                            f"{where} {row}: {error}. Every row needs a string or a number."
                        ) from None
                if split:
                    columns["split"] = pa.repeat(split, len(batch))
                first += len(batch)
                yield pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)

    def _added(self) -> list[str]:
        """Return the columns that the table adds to the content: device and split."""
        return [*(["device"] if self.device else []), *([] if "" in self.parts else ["split"])]

    def _content(self, batch: pa.Table, where: str) -> dict[str, pa.ChunkedArray]:
        """Return the columns of some rows, with the content of files that are stored by path."""
        from datasets import ClassLabel
        from datasets.table import embed_table_storage

        features = self._features()
        try:
            table = embed_table_storage(batch.replace_schema_metadata(features.arrow_schema.metadata))
        except OSError as error:
            raise ConfigError(f"{where}: {first_line(error)}") from error
        columns = {column: table[column] for column in features}
        label = features.get(self.device)
        if isinstance(label, ClassLabel) and label.names:
            # The library stores -1 for a missing label.
            names = dict(enumerate(label.names))
            strings = [names.get(code) for code in table[self.device].to_pylist()]
            columns[self.device] = pa.chunked_array([pa.array(strings, pa.string())])
        return columns

    def _features(self) -> Any:
        return next(iter(self.parts.values())).features


def _write(stream: TableStream, out: Path, progress: ProgressFn) -> None:
    """Write rows in their order; `out` appears only when all of them are written."""
    whole, done = out.with_name(f"{out.name}.tmp"), 0
    try:
        with TableWriter(whole, stream.schema) as writer:
            for table in stream.tables:
                writer.add(table)
                done += len(table)
                progress(done, stream.rows)
        whole.replace(out)
    finally:
        whole.unlink(missing_ok=True)


def _stored(kind: pa.DataType) -> pa.DataType:
    """Return the storage type of a type: a list for those of `datasets` itself, such as arrays."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
