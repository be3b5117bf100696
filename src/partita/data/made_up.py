"""Made-up tables: examples of the right shape, of noise, for data that is not there."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from partita.data.importers.source import Kind
from partita.data.writing import TableWriter, schema_of
from partita.errors import needed

_SECONDS, _RATE = 12, 16_000
"""An utterance of a usual length."""
COLUMNS: dict[str, dict[str, Kind]] = {
    "image": {"image": "image", "label": "label"},
    "text": {"text": "text"},
    "speech": {"audio": "audio", "text": "text"},
}
"""The content of a table, by the kind of task."""


def write_made_up(path: Path, kind: str, *, devices: int, size: int, words: int) -> None:
    """Write a table for a kind of task; only the first device has pictures and sounds to look at.

    Args:
        path: where to write it.
        kind: one of `COLUMNS`.
        devices: how many devices it has.
        size: the height and width of pictures.
        words: how many different words the first text has.
    """
    columns = COLUMNS[kind]
    words = 40 if "audio" in columns else words
    first = {name: _value(what, size, words) for name, what in columns.items()}
    other = {name: 0 if columns[name] == "label" else None for name in columns}
    other |= {"text": "word0"} if "text" in columns else {}
    with TableWriter(path, schema_of(columns)) as writer:
        for number in range(devices):
            row = {"device": f"device-{number:07}", **(other if number else first)}
            writer.add_rows([{**row, "split": split} for split in ("train", "test")])


def _value(kind: Kind, size: int, words: int) -> Any:
    rng = np.random.default_rng(0)
    content = BytesIO()
    match kind:
        case "image":
            Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(content, "PNG")
        case "audio":
            soundfile = needed("soundfile", by="the speech task", extra="speech")
            noise = 0.1 * rng.standard_normal(_SECONDS * _RATE)
            soundfile.write(content, noise, _RATE, format="FLAC", subtype="PCM_16")
        case "text":
            return " ".join(f"word{number}" for number in range(words))
        case _:
            return 0
    return {"bytes": content.getvalue(), "path": None}
