"""How long a table of a million devices takes to open, and how much memory.

    python benchmarks/million_devices.py [FOLDER]

Writes a table of 1,000,000 devices with 20 texts each (about 2 GB) to FOLDER, or to a temporary one, unless
it is there already; then opens it without an index and with one, each in a process of its own, and reads
some devices.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from partita.data.options import TableOptions
from partita.data.table import DeviceTable
from partita.data.writing import TableWriter, schema_of
from process_memory import memory

DEVICES = 1_000_000
ROWS = 20
AT_A_TIME = 1000


def write(path: Path) -> None:
    """Write the table, a thousand devices at a time, with texts of random digits."""
    rng = np.random.default_rng(1)
    schema = schema_of({"text": "text"})
    with TableWriter(path, schema) as writer:
        for first in range(0, DEVICES, AT_A_TIME):
            numbers = np.repeat(np.arange(first, first + AT_A_TIME), ROWS)
            noise = rng.integers(0, 256, (len(numbers), 92), dtype=np.uint8)
            columns = {
                "device": [f"device-{number:07}" for number in numbers],
                "split": ["test" if place % 5 == 4 else "train" for place in range(len(numbers))],
                "text": [row.tobytes().hex() for row in noise],
            }
            writer.add(pa.table(columns, schema=schema))


def open_table(path: Path) -> dict[str, float]:
    """Open the table, read 50 devices, and return how long each took and how much memory there was."""
    before = memory("VmRSS")
    begin = time.perf_counter()
    table = DeviceTable(path, TableOptions(), ("text",))
    opened = time.perf_counter() - begin
    begin = time.perf_counter()
    for number in range(0, DEVICES, DEVICES // 50):
        assert len(table.rows_of(f"device-{number:07}")["train"]) == 16
    read = (time.perf_counter() - begin) / 50
    return {"open": opened, "read": read, "memory": (memory("VmHWM") - before) / 1e6}


def main() -> None:
    """Write the table and open it twice."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    path = folder / "million.parquet"
    if not path.exists():
        print(f"Writing {path} ...")
        write(path)
    print(f"{DEVICES:,} devices in {path.stat().st_size / 1e9:.2f} GB")
    for index in path.parent.glob("*.index"):
        index.unlink()
    for what in ("without an index", "with an index"):
        command = [sys.executable, __file__, str(folder), "open"]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"{what}: opened in {told['open']:.1f} s, a device read in {told['read'] * 1000:.1f} ms, "
            f"{told['memory']:.0f} MB more at the most"
        )


if __name__ == "__main__":
    if sys.argv[2:] == ["open"]:
        print(json.dumps(open_table(Path(sys.argv[1]) / "million.parquet")))
    else:
        main()
