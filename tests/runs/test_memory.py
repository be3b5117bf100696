"""The journal of a run in memory: it returns what it was given, and holds it packed."""

import random
import tracemalloc
from typing import Any

import pytest
import torch

from partita.runs import memory
from partita.runs.memory import MemoryJournal
from partita.server.round import State
from partita.training.journal import Commit

COLUMNS = {"stage": str, "device": str, "split": str, "weight": int, "metric": float, "reason": str}
STATE = State(shared={"u": torch.zeros(1)}, optimizer={}, steps=0)


def commit(number: int) -> Commit:
    return Commit(number=number, stage="s", round=0, label="s-0", counted=[], asked=[], steps=0)


def block(number: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The line and the rows of an evaluation of 100 devices."""
    devices = [f"device-{100 * number + position:07}" for position in range(100)]
    rows = [
        {"stage": "s", "device": device, "split": split, "weight": 3, "metric": place / 7, "reason": None}
        for place, device in enumerate(devices)
        for split in ("train", "test")
    ]
    return {"work": "evaluate", "asked": devices, "heard": devices, "failed": {}}, rows


def test_lines_and_rows_come_back_as_they_were() -> None:
    journal = MemoryJournal()
    blocks = [block(number) for number in range(3)]
    for number, (line, rows) in enumerate(blocks):
        journal.commit(commit(number), STATE, line, rows)

    every = [row for _, rows in blocks for row in rows]
    assert list(journal.rounds()) == [line for line, _ in blocks]
    assert list(journal.rows()) == every

    journal.finish(COLUMNS, journal.rows(), {})

    assert journal.measurements.to_pylist() == every
    assert list(journal.rows()) == every


@pytest.mark.slow
def test_a_device_takes_few_bytes() -> None:
    journal = MemoryJournal()
    devices = 20_000
    tracemalloc.start()

    for number in range(devices // 100):
        journal.commit(commit(number), STATE, *block(number))
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert kept < 100 * devices


@pytest.mark.slow
def test_memory_stays_flat_with_many_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    # Random metrics do not compress: those of 15,000 devices on two splits have 240 kB at least.
    monkeypatch.setattr(memory, "_IN_MEMORY", 50_000)
    journal, chance = MemoryJournal(), random.Random(1)
    kept: list[int] = []
    tracemalloc.start()

    for number in range(200):
        line, rows = block(number)
        journal.commit(commit(number), STATE, line, [{**row, "metric": chance.random()} for row in rows])
        kept.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()

    assert kept[199] < kept[50] + 50_000
    assert sum(1 for _ in journal.rows()) == 200 * 200


def test_rows_can_be_read_while_more_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_IN_MEMORY", 100)
    packed = memory.Packed()
    packed.append("x" * 1000)
    first, second = iter(packed), iter(packed)

    assert next(first) == "x" * 1000
    packed.append([1, 2])

    assert [*first, *second] == [[1, 2], "x" * 1000, [1, 2]]
