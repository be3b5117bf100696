"""Public data sets, and tables of others, turned into tables by device."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.config.imports import call, load
from partita.data.sources.importing import Imported, import_source
from partita.data.sources.source import Tick
from partita.errors import ConfigError

SOURCES = {
    "emnist": "partita.data.sources.emnist:Emnist",
    "stackoverflow": "partita.data.sources.stackoverflow:StackOverflow",
    "gldv2": "partita.data.sources.gldv2:Gldv2",
    "librispeech": "partita.data.sources.librispeech:LibriSpeech",
    "qmnist": "partita.data.sources.qmnist:Qmnist",
    "audiomnist": "partita.data.sources.audiomnist:AudioMnist",
}
"""Data sets in their own files."""
TABLES = {
    "sort": "partita.data.sort:sort_table",
    "dirichlet": "partita.data.sources.drawn:dirichlet",
    "shards": "partita.data.sources.drawn:shards",
    "hf": "partita.data.sources.hub:import_hub",
}
"""What is done to a table, or to a data set of the `datasets` library."""


def import_data(kind: str, source: str, out: Path, options: Mapping[str, Any], tick: Tick) -> list[str]:
    """Write a table by device and return what there is to say of it, a line each."""
    reserved = {"source", "name", "path", "out", "tick"} & options.keys()
    if reserved:
        raise ConfigError(f"`{min(reserved)}` is no key of `partita import`: it has a place of its own.")
    if kind == "hf" and "device" not in options:
        raise ConfigError("`partita import hf` needs `device=COLUMN`, the column that says whose a row is.")
    if kind in TABLES:
        function = load("kind", kind, TABLES)
        given = source if kind == "hf" else Path(source)
        first = "name" if kind == "hf" else "source"
        told = call(f"import {kind}", function, {first: given, "out": out, "tick": tick, **options})
        return told.lines() if isinstance(told, Imported) else [f"Wrote {told:,} rows."]
    if kind not in SOURCES:
        raise ConfigError(f"`partita import` knows {', '.join([*SOURCES, *TABLES])}, got {kind!r}.")
    make = load("kind", kind, SOURCES)
    read = call(f"import {kind}", make, {"path": Path(source), **options})
    about = json.dumps([kind, str(Path(source).resolve()), options, _state_of(Path(source))])
    return import_source(read, out, tick, about=about).lines()


def _state_of(source: Path) -> list[float]:
    """Return what changes when a source does: how many files there are, their size, their last change."""
    files = [file for file in (source.rglob("*") if source.is_dir() else [source]) if file.is_file()]
    stats = [file.stat() for file in files]
    return [
        len(stats),
        sum(stat.st_size for stat in stats),
        max((stat.st_mtime for stat in stats), default=0),
    ]
