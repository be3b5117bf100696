"""Small tables by device, for tests."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from partita.data.options import TableOptions
from partita.data.table import DeviceTable


def write(path: Path, rows: Sequence[Mapping[str, Any]], *, group: int = 7) -> Path:
    """Write rows in row groups so small that a device's rows often span several."""
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=group)
    return path


def png(value: int, *, size: int = 6, mode: str = "L") -> dict[str, Any]:
    """Return an image of one color."""
    content = BytesIO()
    shape = (size, size) if mode == "L" else (size, size, 3)
    Image.fromarray(np.full(shape, value, np.uint8)).save(content, "PNG")
    return {"bytes": content.getvalue(), "path": None}


def texts(*, devices: int = 3, rows: int = 6, **columns: Any) -> list[dict[str, Any]]:
    """Return rows with `device` and `text`, all texts different."""
    return [
        {
            "device": f"d{device}",
            "text": f"text {device} {row}",
            **{name: make(device, row) for name, make in columns.items()},
        }
        for device in range(devices)
        for row in range(rows)
    ]


def split_of(device: int, row: int) -> str:
    """Every third row is a test row."""
    return "test" if row % 3 == 2 else "train"


def open_table(path: Path, **options: Any) -> DeviceTable:
    """Open a table with one column of content, `text`."""
    return DeviceTable(path, TableOptions(**options), ("text",))


def contents(table: DeviceTable) -> dict[tuple[str, str], list[str]]:
    """Return the texts of a table by device and split."""
    return {
        (device, split): [row["text"] for row in rows.content]
        for device in table.ids
        for split, rows in table.rows_of(device).items()
    }


def splits_by_text(table: DeviceTable) -> dict[str, str]:
    """Return the split of each text of a table."""
    return {text: split for (_, split), found in contents(table).items() for text in found}


def not_utf8(values: list[bytes]) -> pa.Array:
    """Return strings that need not be UTF-8, as some programs write them."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def bad_table(folder: Path) -> Path:
    """Write a table of images in which six rows of three devices are bad, and return its path."""
    rows = [
        {
            "device": f"d{device}",
            "image": {"bytes": b"no image", "path": None} if row in (1, 4) and device % 2 else png(10 * row),
            "label": row % 2,
            "split": "test" if row > 5 else "train",
        }
        for device in range(6)
        for row in range(8)
    ]
    return write(folder / "bad.parquet", rows)
