"""Files in TensorFlow Federated's layouts, written from examples by split and device."""

import sqlite3
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

INDEXES = (
    "CREATE INDEX idx_examples_client_id ON examples (client_id)",
    "CREATE INDEX idx_examples_client_id_split ON examples (split_name, client_id)",
    "CREATE INDEX idx_metadata_client_id ON client_metadata (client_id)",
)
"""The indexes of the public files."""


def varint(value: int) -> bytes:
    value %= 2**64
    digits = [value % 128]
    while value := value // 128:
        digits.append(value % 128)
    return bytes([digit + 128 for digit in digits[:-1]] + digits[-1:])


def field(number: int, content: bytes) -> bytes:
    return varint(number * 8 + 2) + varint(len(content)) + content


def feature(values: Sequence[bytes] | Sequence[float] | Sequence[int]) -> bytes:
    """A Feature as TensorFlow writes it: numbers are packed."""
    if isinstance(values[0], bytes):
        return field(1, b"".join(field(1, value) for value in values))
    if isinstance(values[0], int):
        return field(3, field(1, b"".join(varint(value) for value in values)))
    return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))


def entry(name: str, content: bytes) -> bytes:
    return field(1, field(1, name.encode()) + field(2, content))


def example(**features: Sequence[bytes] | Sequence[float] | Sequence[int]) -> bytes:
    return field(1, b"".join(entry(name, feature(values)) for name, values in features.items()))


def write_sqlite(
    path: Path, rows: Iterable[tuple[str, str, Any]], statements: Iterable[str] = INDEXES
) -> Path:
    """Write rows of split, device and record, and their counts; then run some statements."""
    with sqlite3.connect(path) as base:
        base.execute(
            "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, "
            "serialized_example_proto BLOB NOT NULL)"
        )
        base.execute(
            "CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL, "
            "num_examples INTEGER NOT NULL)"
        )
        base.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
        base.execute(
            "INSERT INTO client_metadata SELECT client_id, split_name, count(*) FROM examples "
            "GROUP BY client_id, split_name"
        )
        for statement in statements:
            base.execute(statement)
    base.close()
    return path


def write_hdf5(path: Path, devices: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write `examples/<device>/<member>` datasets."""
    import h5py

    with h5py.File(path, "w") as file:
        group = file.create_group("examples")
        for device, members in devices.items():
            own = group.create_group(device)
            for member, values in members.items():
                own.create_dataset(member, data=values)
    return path
