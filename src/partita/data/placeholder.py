"""Placeholder tables: noise in the right shapes, for `describe` when the data files are missing."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from partita.data.writing import ColumnKind, TableWriter, schema_of
from partita.errors import needed

_SECONDS, _RATE = 12, 16_000
"""The length and the sampling rate of the placeholder utterance: a typical one."""
LABEL = "label"
"""The key of the column of labels, and that column of a placeholder table; texts need not have labels."""
COLUMNS: dict[str, dict[str, ColumnKind]] = {
    "image": {"image": "image", LABEL: "label"},
    "text": {"text": "text", LABEL: "label"},
    "speech": {"audio": "audio", "text": "text"},
}
"""The content columns of a table, by kind of task."""


def write_placeholder(path: Path, kind: str, *, devices: int, size: int, words: int) -> None:
    """Write a placeholder table for a kind of task; only the first device has valid images or audio.

    Args:
        path: the file to write.
        kind: a key of `COLUMNS`.
        devices: the number of devices.
        size: the height and width of images.
        words: the number of different words in the first text.
    """
    columns = COLUMNS[kind]
    words = 40 if "audio" in columns else words
    first = {name: _value(content, size, words) for name, content in columns.items()}
    other = {name: 0 if columns[name] == "label" else None for name in columns}
    other |= {"text": "word0"} if "text" in columns else {}
    with TableWriter(path, schema_of(columns)) as writer:
        for number in range(devices):
            row = {"device": f"device-{number:07}", **(other if number else first)}
            writer.add_rows([{**row, "split": split} for split in ("train", "test")])


def _value(kind: ColumnKind, size: int, words: int) -> Any:
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
