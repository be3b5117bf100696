"""The cache of decoded examples."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
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

    one = bytes_of((("a", "train"), torch.zeros(40))) + 400
    cache = ExampleCache(max_bytes=2 * one)
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
        assert 4000 < bytes_of(examples) < 5500


@dataclass
class Utterance:
    text: str
    tokens: Tensor


def test_what_is_around_many_small_tensors_is_counted() -> None:
    # A tensor of one value takes more than 500 bytes, a short text more than 50, an instance with its
    # dictionary more than 100; a list has 8 more for each of them.
    for make, least in (
        (lambda number: torch.zeros(1), 500),
        (lambda number: f"text {number}", 50),
        (lambda number: 10**9 + number, 28),
        (lambda number: np.zeros(100), 900),
        (lambda number: Utterance(f"text {number}", torch.zeros(1)), 650),
        (lambda number: {f"key {number}": 0.5 + number}, 250),
    ):
        assert 1000 * (least + 8) < bytes_of([make(number) for number in range(1000)]) < 3000 * (least + 8)


def test_a_storage_with_several_views_counts_once_and_whole() -> None:
    table = torch.zeros(100, 11)

    assert 4400 < bytes_of((table[:, :-1], table[:, 1:])) < 4400 + 1500
    assert bytes_of(table[:1]) > 4400  # The view keeps all of it in memory.


MEMORY = """
import gc, torch
from partita.data.cache import ExampleCache

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

cache = ExampleCache(max_bytes=50_000_000)
cache.get_or_load(("warm", "train"), lambda: (torch.zeros(1), torch.tensor([1])))
before = resident()
for number in range(100_000):
    cache.get_or_load((f"device-{number:07}", "train"), lambda: (torch.zeros(1, 3), torch.zeros(1)))
print(resident() - before)
"""


@pytest.mark.slow
def test_a_cache_of_many_small_devices_takes_about_the_memory_that_it_may() -> None:
    grown = int(subprocess.run([sys.executable, "-c", MEMORY], check=True, capture_output=True).stdout)

    assert 25_000_000 < grown < 65_000_000


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
