"""Importing data: a public dataset, or a table of another form, becomes a table by device."""

import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from partita.config.changes import parse_overrides
from partita.config.loading import call, load
from partita.data.importers.source import import_source
from partita.data.writing import ProgressFn
from partita.errors import ConfigError, did_you_mean

SOURCES = {
    "emnist": "partita.data.importers.emnist:Emnist",
    "stackoverflow": "partita.data.importers.stackoverflow:StackOverflow",
    "gldv2": "partita.data.importers.gldv2:Gldv2",
    "librispeech": "partita.data.importers.librispeech:LibriSpeech",
    "qmnist": "partita.data.importers.qmnist:Qmnist",
    "audiomnist": "partita.data.importers.audiomnist:AudioMnist",
}
"""Importers of public datasets, from the files in which they are published."""
TABLES = {
    "sort": "partita.data.sort:sort_table",
    "dirichlet": "partita.data.importers.label_skew:dirichlet",
    "shards": "partita.data.importers.label_skew:shards",
    "hf": "partita.data.importers.hub:import_hub",
}
"""Functions that turn a table, or a dataset of the `datasets` library, into a table by device."""
_POSITIONAL = {"source", "name", "path", "out", "progress"}
"""Arguments that are not given as `key=value`."""


def import_data(
    kind: str, source: str, out: Path, settings: Sequence[str], progress: ProgressFn
) -> list[str]:
    """Write a table by device and return the lines of a summary.

    Args:
        kind: one of `SOURCES` or `TABLES`.
        source: the file or folder to read; with `hf`, the name of a dataset.
        out: the table to write.
        settings: `key=value` arguments.
        progress: the progress callback.
    """
    known = SOURCES | TABLES
    if kind not in known:
        hint = did_you_mean(kind, known)
        raise ConfigError(
            f"The kind of `partita import` must be one of {', '.join(known)}, got {kind!r}.{hint}"
        )
    function = load("kind", kind, known)
    options = _options(kind, function, settings)
    if kind in TABLES:
        given = source if kind == "hf" else Path(source)
        first = "name" if kind == "hf" else "source"
        result = call(f"import {kind}", function, {first: given, "out": out, "progress": progress, **options})
        return [f"Wrote {result:,} rows."] if isinstance(result, int) else result.lines()
    read = call(f"import {kind}", function, {"path": Path(source), **options})
    about = json.dumps([kind, str(Path(source).resolve()), options, _state_of(Path(source))])
    return import_source(read, out, progress, about=about).lines()


def _options(kind: str, function: Callable[..., Any], settings: Sequence[str]) -> dict[str, Any]:
    """Return the values of `key=value` arguments, those of keys that take strings as strings."""
    annotations = {
        name: parameter.annotation
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in _POSITIONAL
    }
    options: dict[str, Any] = {}
    for setting in settings:
        for key, value in parse_overrides([setting]).items():
            if key in _POSITIONAL:
                raise ConfigError(f"`{key}` is not a key of `partita import`: it is a positional argument.")
            if key not in annotations:
                keys = f"Its keys: {', '.join(annotations)}." if annotations else "It has none."
                hint = did_you_mean(key, list(annotations))
                raise ConfigError(f"`partita import {kind}` has no key `{key}`.{hint} {keys}")
            is_text = annotations[key] is str and not isinstance(value, str)
            options[key] = setting.partition("=")[2] if is_text else value
    return options


def _state_of(source: Path) -> list[float]:
    """Return the number of files of a source, their size and the time of the last change."""
    files = [file for file in (source.rglob("*") if source.is_dir() else [source]) if file.is_file()]
    stats = [file.stat() for file in files]
    return [
        len(stats),
        sum(stat.st_size for stat in stats),
        max((stat.st_mtime for stat in stats), default=0),
    ]
