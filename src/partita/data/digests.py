"""Digests of files: a run knows its data by content, not by name.

The digest of a table, which may be large, is kept beside it and computed again only after a change of the
file's size or times.
"""

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from partita.data.cache import cache_paths, file_states, mode_of, write_to_first
from partita.data.files import open_files
from partita.errors import ConfigError
from partita.seals import read_json, sealed_json

_SHA256 = "sha256 "


def describe_file(path: Path) -> str:
    """Return a text that identifies the content of a file."""
    return f"{_SHA256}{_digest(path)}"


def describe_table(path: Path) -> str:
    """Return a text that identifies the content of a table, a file or a folder, with its number of rows."""
    table = open_files(path)
    return f"{_SHA256}{_cached_digest(path, table.paths)}, {table.rows} rows"


def describe_files(folder: Path, files: Sequence[Path]) -> str:
    """Return a text that identifies the content of some files of a folder."""
    return f"{_SHA256}{_cached_digest(folder, files)}"


def places_of(name: str, folder: Path, *, is_recorded: bool) -> list[Path]:
    """Return the paths where a file may be, in the order in which they are tried.

    Args:
        name: the name of the file, as a config has it.
        folder: the folder of the config; $PARTITA_DATA is the other one.
        is_recorded: whether a run has recorded the file, which is then looked for by its name alone too.
    """
    folders = [folder, *(Path(place) for place in [os.environ.get("PARTITA_DATA")] if place)]
    names = [name, Path(name).name] if is_recorded else [name]
    return [place / each for each in names for place in folders]


def is_there(place: Path) -> bool:
    """Return whether there is a file or folder; at a path that no file can have there is none."""
    try:
        return place.exists()
    except (OSError, ValueError):
        return False


def is_digest(text: str) -> bool:
    """Return whether a text identifies the content of a file."""
    return text.startswith(_SHA256)


def rows_in(text: str) -> int:
    """Return the number of rows in the description of a table, 0 if it says nothing of rows.

    >>> rows_in("sha256 ab12, 1500 rows"), rows_in("sha256 ab12")
    (1500, 0)
    """
    _, _, rows = text.partition(", ")
    return int(rows.removesuffix(" rows") or 0)


def _cached_digest(path: Path, files: Sequence[Path]) -> str:
    """Return the digest of a table's files, from a file beside the table, which is written if needed."""
    states = [list(state) for state in file_states(files)]
    places = cache_paths(path, key="content", suffix="sha256")
    for place in places:
        with contextlib.suppress(OSError, ConfigError):  # It is missing or damaged.
            cached = read_json(place)
            if cached.get("files") == states:
                return cached["digest"]
    digests = [_digest(file) for file in files]
    if path.is_dir():
        names = "".join(f"{digest} {file.name}\n" for digest, file in zip(digests, files, strict=True))
        digests = [hashlib.sha256(names.encode()).hexdigest()]
    content = sealed_json({"files": states, "digest": digests[0]})
    write_to_first(places, lambda place: place.write_bytes(content), mode=mode_of(files))
    return digests[0]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
