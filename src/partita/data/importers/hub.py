"""Any data set of the `datasets` library: on the hub, in a folder of data files, or saved to disk."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from partita.data.ids import check_id, ids_of
from partita.data.importers.importing import Imported
from partita.data.importers.source import Survey, Tick
from partita.data.reading import Stream, ids_in, one_line
from partita.data.rows import WrongRow
from partita.data.sort import check_new, silent, sort_stream
from partita.data.writing import TableWriter
from partita.errors import ConfigError, needed

if TYPE_CHECKING:
    from datasets import Dataset

_ROWS = 100
"""Rows taken at a time: their media files are read into memory."""
_SPLITS = ("train", "validation", "test")
_FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".arrow": "arrow"}


@dataclass(frozen=True)
class Undealt:
    """What an import without devices gave."""

    rows: int

    def lines(self) -> list[str]:
        """Return how many rows there are, and what deals them to devices."""
        return [
            f"Wrote {self.rows:,} rows without devices: `partita import dirichlet` or `shards` deals them "
            "to some."
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
    tick: Tick = silent,
) -> Imported | Undealt:
    """Write a data set to `out`, a Parquet table in the order of device ids.

    Images and recordings are stored as they are, not decoded. The splits become the column `split`; a data
    set with nothing but `train`, or of which one split was picked, gets none.

    Args:
        name: a name on the hub, a folder or a file of data, or a folder written by `save_to_disk`.
        out: the table to write.
        device: the column that says whose a row is; it becomes `device`, a text. Left out: the table has no
            devices, and `dirichlet` or `shards` can deal its rows.
        split: the one split to import; all of them where it is left out.
        config: which of several configurations of a data set to load.
        revision: the branch, tag or commit on the hub.
        cache: the folder for what is downloaded; the `datasets` library's own where it is left out.
        tick: told of the progress.

    Raises:
        ConfigError: `out` is there already, the data set cannot be loaded, or lacks what was asked for.
    """
    check_new(out)
    loaded = _load(name, {"name": config, "revision": revision, "cache_dir": cache})
    found = _Found(name, _parts(name, loaded, split), device)
    found.check()
    rows = sum(len(part) for part in found.parts.values())
    if not device:
        _write(Stream(found.schema(), rows, found.tables()), out, tick)
        return Undealt(rows)
    sort_stream(Stream(found.schema(), rows, found.tables()), out, tick=tick)
    return Imported(Survey(ids_in(out)), rows)


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
    except Exception as error:  # The library has a reader for each format, and passes on what they raise.
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise ConfigError(
            f"The data set {name!r} cannot be loaded: {one_line(cause)} "
            "It must be a name on the hub, a folder or file of data, or a folder written by `save_to_disk`."
        ) from error


def _parts(name: str, loaded: Any, split: str) -> dict[str, "Dataset"]:
    """Return the data by what the column `split` will say: "" where there will be no such column."""
    alone = not isinstance(loaded, dict)
    parts: dict[str, Dataset] = {str(loaded.split or "train"): loaded} if alone else dict(loaded)
    there = ", ".join(parts)
    if split and split not in parts:
        raise ConfigError(f"The data set {name!r} has no split {split!r}. It has: {there}.")
    if split or alone or list(parts) == ["train"]:
        return {"": parts[split or next(iter(parts))]}
    if strange := [part for part in parts if part not in _SPLITS]:
        raise ConfigError(
            f"The data set {name!r} has the splits {there}: pick the one to import with `split`, since "
            f"{strange[0]!r} is none of {', '.join(_SPLITS)}."
        )
    return parts


@dataclass(frozen=True)
class _Found:
    """A data set that was loaded, its rows taken as they are stored."""

    name: str
    parts: Mapping[str, "Dataset"]
    device: str

    def check(self) -> None:
        """Raise a `ConfigError` where a column is missing, of a wrong type or in the way."""
        features = self._features()
        if self.device:
            if self.device not in features:
                there = ", ".join(features)
                raise ConfigError(f"{self.name!r} has no column {self.device!r}. It has: {there}.")
            check_id(features.arrow_schema.field(self.device).type, self.device, repr(self.name))
        elif "device" in features:
            raise ConfigError(f"{self.name!r} has a column `device`: import it with `device=device`.")
        if taken := sorted(set(self._own()) & (set(features) - {self.device})):
            raise ConfigError(f"{self.name!r} has a column `{taken[0]}` already, which the table needs.")
        for split, part in self.parts.items():
            if part.features != features:
                raise ConfigError(f"Split {split!r} of {self.name!r} has other columns than the first split.")

    def schema(self) -> pa.Schema:
        """Return the table's schema, which `datasets` opens as well."""
        from datasets import Features, Value

        content = {column: kind for column, kind in self._features().items() if column != self.device}
        schema = Features({**{column: Value("string") for column in self._own()}, **content}).arrow_schema
        return pa.schema([field.with_type(_stored(field.type)) for field in schema], schema.metadata)

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows, split after split."""
        schema = self.schema()
        for split, part in self.parts.items():
            first = 0
            for batch in part.with_format("arrow").iter(_ROWS):
                where = f"{self.name!r}, {f'split {split!r}, ' if split else ''}row"
                columns: dict[str, Any] = self._content(batch, f"{where}s from {first}")
                if self.device:
                    try:
                        columns["device"] = ids_of(columns.pop(self.device), self.device)
                    except WrongRow as error:
                        row = first + error.row
                        raise ConfigError(
                            f"{where} {row}: {error}. Every row needs a text or a number."
                        ) from None
                if split:
                    columns["split"] = pa.repeat(split, len(batch))
                first += len(batch)
                yield pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)

    def _own(self) -> list[str]:
        """Return the columns that are the table's own: whose a row is, and on which side."""
        return [*(["device"] if self.device else []), *([] if "" in self.parts else ["split"])]

    def _content(self, batch: pa.Table, where: str) -> dict[str, pa.ChunkedArray]:
        """Return the columns of some rows, with the content of files that they only name."""
        from datasets import ClassLabel
        from datasets.table import embed_table_storage

        features = self._features()
        try:
            table = embed_table_storage(batch.replace_schema_metadata(features.arrow_schema.metadata))
        except OSError as error:
            raise ConfigError(f"{where}: {one_line(error)}") from error
        columns = {column: table[column] for column in features}
        label = features.get(self.device)
        if isinstance(label, ClassLabel) and label.names:
            # -1 is how the library writes that there is no label.
            names = dict(enumerate(label.names))
            texts = [names.get(code) for code in table[self.device].to_pylist()]
            columns[self.device] = pa.chunked_array([pa.array(texts, pa.string())])
        return columns

    def _features(self) -> Any:
        return next(iter(self.parts.values())).features


def _write(stream: Stream, out: Path, tick: Tick) -> None:
    """Write rows in their order; nothing is at `out` before all of them are."""
    whole, done = out.with_name(f"{out.name}.tmp"), 0
    try:
        with TableWriter(whole, stream.schema) as writer:
            for table in stream.tables:
                writer.add(table)
                done += len(table)
                tick(done, stream.rows)
        whole.replace(out)
    finally:
        whole.unlink(missing_ok=True)


def _stored(kind: pa.DataType) -> pa.DataType:
    """Return how values of a type are stored: those of `datasets` itself, such as arrays, as lists."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
