"""Examples that are held for a device's next visit."""

from pathlib import Path

import torch
from torch import Tensor

from partita.data.held import Held, bytes_of
from partita.data.options import TableOptions
from partita.data.rows import Rows
from partita.data.table import DeviceTable
from tables import write


def test_what_was_not_asked_for_longest_makes_room() -> None:
    made: list[str] = []

    def examples(device: str) -> Tensor:
        made.append(device)
        return torch.zeros(40)

    held = Held(most=2 * 160)
    for device in ("a", "b", "a", "c", "a", "b"):
        held.get((device, "train"), lambda device=device: examples(device))

    assert made == ["a", "b", "c", "b"]  # c took b's place: a was used after b.


def test_what_is_larger_than_all_room_is_held_until_the_next() -> None:
    held = Held(most=1)
    large = held.get(("a", "train"), lambda: torch.zeros(40))

    assert held.get(("a", "train"), lambda: torch.ones(1)) is large
    held.get(("b", "train"), lambda: torch.zeros(40))
    assert held.get(("a", "train"), lambda: torch.ones(1)) is not large


def test_tensors_count_wherever_they_are() -> None:
    tensor = torch.zeros(1000)

    for examples in ([tensor], (tensor,), {"x": tensor}, {"x": [(tensor, "text")]}):
        assert 4000 < bytes_of(examples) < 4500


def test_a_device_of_a_table_is_decoded_once_while_it_is_held(tmp_path: Path) -> None:
    rows = [{"device": d, "split": s, "x": n} for d in "ab" for n, s in enumerate(("train", "train", "test"))]
    table = DeviceTable(write(tmp_path / "t.parquet", rows), TableOptions(), ("x",))
    asked: list[tuple[str, str]] = []

    def examples(rows: Rows) -> list[int]:
        asked.append((rows.device, rows.side))
        return rows.used(lambda row: row["x"])

    devices = table.devices(examples)
    for _ in range(2):
        assert devices["a"]["train"] == [0, 1]
        assert devices["b"]["test"] == [2]

    assert asked == [("a", "train"), ("b", "test")]
    assert list(devices["a"]) == ["train", "test"]
    assert "validation" not in devices["a"]
