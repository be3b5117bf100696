"""Small tables by device, written as people have them."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def write(path: Path, rows: Sequence[Mapping[str, Any]], *, group: int = 7) -> Path:
    """Write rows in row groups so small that a device's rows are often in several."""
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=group)
    return path


def png(value: int, *, side: int = 6, mode: str = "L") -> dict[str, Any]:
    """A picture of one color."""
    content = BytesIO()
    shape = (side, side) if mode == "L" else (side, side, 3)
    Image.fromarray(np.full(shape, value, np.uint8)).save(content, "PNG")
    return {"bytes": content.getvalue(), "path": None}


def texts(*, devices: int = 3, rows: int = 6, **columns: Any) -> list[dict[str, Any]]:
    """Rows with `device` and `text`, every text another."""
    return [
        {
            "device": f"d{device}",
            "text": f"text {device} {row}",
            **{name: make(device, row) for name, make in columns.items()},
        }
        for device in range(devices)
        for row in range(rows)
    ]
