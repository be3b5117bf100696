"""Seals: the schema version and the sha256 that a file carries, by which damage is noticed when it is read.

A JSON file has both as keys, a text file in its first or last line. The digest of a JSON file is that of its
values: other white space is no damage.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.errors import ConfigError, Damaged

SCHEMA = 1
"""The version of the files that Partita writes: another one is not read."""
RESTORE = "restore it from a copy"
"""The remedy for a damaged file."""
_SCHEMA, _DIGEST = "schema", "sha256"
_LINE = re.compile(r"# partita schema (\d+), sha256 ([0-9a-f]{64})")
_MARK = "# partita schema"


def sha256(content: bytes) -> str:
    """Return the digest of some bytes."""
    return hashlib.sha256(content).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damaged(path: Path, reason: str) -> Damaged:
    """Return the error about a damaged file."""
    return Damaged(f"`{path}` is damaged: {reason}. {RESTORE.capitalize()}.")


def missing(path: Path) -> Damaged:
    """Return the error about a file that was deleted."""
    return Damaged(f"`{path}` is missing: {RESTORE}.")


def check_schema(path: Path, schema: object) -> None:
    """Raise if a file was written by another version of Partita."""
    if schema != SCHEMA:
        found = "it has no schema" if schema is None else f"its schema is {schema!r}"
        raise ConfigError(
            f"`{path}` was written by another version of Partita: {found}, and this version reads schema "
            f"{SCHEMA}. Use the version that `config.toml` names in `made_with`."
        )


def sealed_json(values: Mapping[str, Any]) -> bytes:
    """Return the content of a sealed JSON file."""
    whole = {_SCHEMA: SCHEMA, **values}
    return json.dumps({**whole, _DIGEST: _digest(whole)}, indent=1).encode()


def is_sealed(values: Mapping[str, Any]) -> bool:
    """Return whether the values of a JSON file have a seal, or the remains of one."""
    return _SCHEMA in values or _DIGEST in values


def unsealed(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a sealed JSON file without the seal.

    Raises:
        Damaged: they are not those that were sealed.
        ConfigError: another version of Partita wrote them.
    """
    whole = {name: value for name, value in values.items() if name != _DIGEST}
    if values.get(_DIGEST) != _digest(whole):
        raise damaged(path, "its values are not those of its sha256")
    check_schema(path, whole.pop(_SCHEMA, None))
    return whole


def parsed_json(path: Path, content: bytes) -> dict[str, Any]:
    """Return the values of a JSON file.

    Raises:
        Damaged: it is not JSON, or not an object.
    """
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        raise damaged(path, "it is not JSON") from None
    if not isinstance(values, dict):
        raise damaged(path, "it is not a JSON object")
    return values


def read_json(path: Path) -> dict[str, Any]:
    """Return the values of a sealed JSON file.

    Raises:
        Damaged: they are not those that were sealed.
        ConfigError: another version of Partita wrote them.
        FileNotFoundError: there is no such file.
    """
    values = parsed_json(path, path.read_bytes())
    if not is_sealed(values):
        check_schema(path, None)
    return unsealed(path, values)


def sealed_text(text: str, *, last: bool = False) -> bytes:
    """Return the content of a sealed text file, with the seal in its first or its last line."""
    seal = f"{_MARK} {SCHEMA}, sha256 {_text_digest(SCHEMA, text)}"
    return (f"{text}\n{seal}\n" if last else f"{seal}\n{text}").encode()


def unsealed_text(path: Path, content: bytes, *, last: bool = False) -> str | None:
    """Return the text of a sealed file; None where it has no seal.

    Raises:
        Damaged: the text is not the one that was sealed.
        ConfigError: another version of Partita wrote it.
    """
    try:
        whole = content.decode()
    except UnicodeDecodeError:
        raise damaged(path, "it is not UTF-8") from None
    line, text = _parted(whole, last=last)
    if not (found := _LINE.fullmatch(line)):
        if _MARK in whole:
            raise damaged(path, "its sha256 is gone")
        return None
    schema = int(found[1])
    if found[2] != _text_digest(schema, text):
        raise damaged(path, "its text is not that of its sha256")
    check_schema(path, schema)
    return text


def _parted(whole: str, *, last: bool) -> tuple[str, str]:
    """Return the line of the seal, and the text without it."""
    if not last:
        line, _, text = whole.partition("\n")
        return line, text
    text, _, line = whole.removesuffix("\n").rpartition("\n")
    return line, text


def _text_digest(schema: int, text: str) -> str:
    return sha256(f"{schema}\n{text}".encode())


def _digest(values: Mapping[str, Any]) -> str:
    return sha256(json.dumps(values).encode())
