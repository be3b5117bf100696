"""Changing files of a run as a version of Partita would: with the digests that belong to them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.seals import read_json, sealed_json, sealed_text, sha256, unsealed_text


def change_commit(folder: Path, **changes: Any) -> None:
    """Change entries of `commit.json`."""
    path = folder / "commit.json"
    path.write_bytes(sealed_json({**read_json(path), **changes}))


def change_config(folder: Path, old: str, new: str) -> None:
    """Change a text in `config.toml`."""
    path = folder / "config.toml"
    text = unsealed_text(path, path.read_bytes())
    assert text is not None
    assert old in text
    path.write_bytes(sealed_text(text.replace(old, new)))


def change_file(folder: Path, name: str, content: bytes | None) -> None:
    """Write or delete a file whose digest is in `commit.json`."""
    path, files = folder / name, dict(read_json(folder / "commit.json")["files"])
    path.unlink(missing_ok=True)
    files.pop(name, None)
    if content is not None:
        path.write_bytes(content)
        files[name] = sha256(content)
    change_commit(folder, files=files)


def write_sealed(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file with its seal."""
    path.write_bytes(sealed_json(values))
