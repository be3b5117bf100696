"""Public data sets, and tables of others, turned into tables by device."""

import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from partita.config.changes import parse_overrides
from partita.config.imports import call, load
from partita.config.reading import did_you_mean
from partita.data.importers.source import import_source
from partita.data.writing import ProgressFn
from partita.errors import ConfigError

SOURCES = {
    "emnist": "partita.data.importers.emnist:Emnist",
    "stackoverflow": "partita.data.importers.stackoverflow:StackOverflow",
    "gldv2": "partita.data.importers.gldv2:Gldv2",
    "librispeech": "partita.data.importers.librispeech:LibriSpeech",
    "qmnist": "partita.data.importers.qmnist:Qmnist",
    "audiomnist": "partita.data.importers.audiomnist:AudioMnist",
}
"""Data sets in their own files."""
TABLES = {
    "sort": "partita.data.sort:sort_table",
    "dirichlet": "partita.data.importers.label_skew:dirichlet",
    "shards": "partita.data.importers.label_skew:shards",
    "hf": "partita.data.importers.hub:import_hub",
}
"""What is done to a table, or to a data set of the `datasets` library."""
_PLACES = {"source", "name", "path", "out", "progress"}
"""What is not given as `key=value`."""


def import_data(
    kind: str, source: str, out: Path, settings: Sequence[str], progress: ProgressFn
) -> list[str]:
    """Write a table by device and return what there is to say of it, a line each.

    Args:
        kind: one of `SOURCES` or `TABLES`.
        source: what to read.
        out: the table to write.
        settings: `key=value` texts.
        progress: the progress callback.
    """
    known = SOURCES | TABLES
    if kind not in known:
        raise ConfigError(f"`partita import` knows {', '.join(known)}, got {kind!r}.")
    function = load("kind", kind, known)
    options = _options(kind, function, settings)
    if kind in TABLES:
        given = source if kind == "hf" else Path(source)
        first = "name" if kind == "hf" else "source"
        told = call(f"import {kind}", function, {first: given, "out": out, "progress": progress, **options})
        return [f"Wrote {told:,} rows."] if isinstance(told, int) else told.lines()
    read = call(f"import {kind}", function, {"path": Path(source), **options})
    about = json.dumps([kind, str(Path(source).resolve()), options, _state_of(Path(source))])
    return import_source(read, out, progress, about=about).lines()


def _options(kind: str, function: Callable[..., Any], settings: Sequence[str]) -> dict[str, Any]:
    """Return the values of settings; where a text is asked for, what looks like a number is one too."""
    takes = {
        name: parameter.annotation
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in _PLACES
    }
    options: dict[str, Any] = {}
    for setting in settings:
        for key, value in parse_overrides([setting]).items():
            if key in _PLACES:
                raise ConfigError(f"`{key}` is no key of `partita import`: it has a place of its own.")
            if key not in takes:
                keys = f"It takes {', '.join(takes)}." if takes else "It takes none."
                hint = did_you_mean(key, list(takes))
                raise ConfigError(f"`partita import {kind}` has no key `{key}`.{hint} {keys}")
            is_text = takes[key] is str and not isinstance(value, str)
            options[key] = setting.partition("=")[2] if is_text else value
    return options


def _state_of(source: Path) -> list[float]:
    """Return what changes when a source does: how many files there are, their size, their last change."""
    files = [file for file in (source.rglob("*") if source.is_dir() else [source]) if file.is_file()]
    stats = [file.stat() for file in files]
    return [
        len(stats),
        sum(stat.st_size for stat in stats),
        max((stat.st_mtime for stat in stats), default=0),
    ]
