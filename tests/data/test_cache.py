"""The cache of decoded examples."""

from pathlib import Path

import torch
from torch import Tensor

from partita.data.cache import ExampleCache, bytes_of
from partita.data.options import TableOptions
from partita.data.rows import Rows
from partita.data.table import DeviceTable
from tables import write


def test_the_least_recently_used_examples_are_evicted() -> None:
    loaded: list[str] = []

    def load(device: str) -> Tensor:
        loaded.append(device)
        return torch.zeros(40)

    cache = ExampleCache(max_bytes=2 * 160)
    for device in ("a", "b", "a", "c", "a", "b"):
        cache.get_or_load((device, "train"), lambda device=device: load(device))

    assert loaded == ["a", "b", "c", "b"]  # c evicts b: a was used after b.


def test_examples_larger_than_the_cache_are_kept_until_the_next() -> None:
    cache = ExampleCache(max_bytes=1)
    large = cache.get_or_load(("a", "train"), lambda: torch.zeros(40))

    assert cache.get_or_load(("a", "train"), lambda: torch.ones(1)) is large
    cache.get_or_load(("b", "train"), lambda: torch.zeros(40))
    assert cache.get_or_load(("a", "train"), lambda: torch.ones(1)) is not large


def test_tensors_in_any_container_are_counted() -> None:
    tensor = torch.zeros(1000)

    for examples in ([tensor], (tensor,), {"x": tensor}, {"x": [(tensor, "text")]}):
        assert 4000 < bytes_of(examples) < 4500


def test_a_device_of_a_table_is_decoded_once_while_it_is_cached(tmp_path: Path) -> None:
    rows = [{"device": d, "split": s, "x": n} for d in "ab" for n, s in enumerate(("train", "train", "test"))]
    table = DeviceTable(write(tmp_path / "t.parquet", rows), TableOptions(), ("x",))
    decoded: list[tuple[str, str]] = []

    def examples(rows: Rows) -> list[int]:
        decoded.append((rows.device, rows.split))
        return rows.parse(lambda row: row["x"])

    devices = table.devices(examples)
    for _ in range(2):
        assert devices["a"]["train"] == [0, 1]
        assert devices["b"]["test"] == [2]

    assert decoded == [("a", "train"), ("b", "test")]
    assert list(devices["a"]) == ["train", "test"]
    assert "validation" not in devices["a"]
