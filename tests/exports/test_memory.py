"""Exporting all devices lets go of each: what it was tried on, its model, and what is said about it."""

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partita.data.cache import ExampleCache
from partita.exports import export
from partita.exports.export import export_all, open_run

DEVICES, FIRST = 40, 8


def test_examples_of_devices_that_are_exported_do_not_stay(
    run_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(run_of("tabular"))
    load, limit, held = ExampleCache.get_or_load, ExampleCache.limit, list[int]()

    def counted(cache: ExampleCache, *given: Any) -> Any:
        found = load(cache, *given)
        held.append(len(cache._entries))
        return found

    monkeypatch.setattr(ExampleCache, "get_or_load", counted)
    monkeypatch.setattr(export, "_CACHED", 1)

    export_all(run, tmp_path / "models", "safetensors")

    assert len(held) >= 4
    assert max(held) == 1
    assert ExampleCache.limit == limit


@pytest.mark.slow
def test_memory_does_not_grow_with_the_devices_that_are_exported(
    run_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(run_of("tabular"))
    vars(run)["devices"] = [*run.devices] * (DEVICES // 4)
    # Without models: building them leaves some memory in lists of Python's own, up to a limit.
    monkeypatch.setattr(export, "_content", lambda subject, format: b"")
    memory: dict[int, int] = {}

    def measure(done: int, total: int) -> None:
        if done in (FIRST, DEVICES):
            gc.collect()
            memory[done] = tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    export_all(run, tmp_path / "models", "safetensors", measure)
    tracemalloc.stop()

    # What is kept is the kind of model that each device got, and the stage that it is of.
    assert (memory[DEVICES] - memory[FIRST]) / (DEVICES - FIRST) < 200
