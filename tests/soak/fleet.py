"""A long run of which a tenth of all visits fail: memory stays flat. Two commands on one folder: one is refused."""

import json
import os
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from partita import Evaluation, FedAlt, Partition, Plan, Training, pipeline
from partita.errors import CannotDo
from small import Affine, affine_devices, affine_task, square_error
from soak.processes import forked
from soak.subjects import OUT, Bench

DEVICES, COHORT = 100, 10
SHARE = 0.1
"""The share of visits that fail."""
GROWTH = 8_000_000
"""Bytes by which memory may grow in the second half of the rounds."""
_PAUSE = 0.05
_MOST = 40


def long_run(folder: Path, rounds: int) -> Iterator[tuple[str, str]]:
    """Train for so many rounds in a process of its own; yield a verdict on its memory, and each failure."""
    file = folder / "memory.json"
    process = forked(lambda: file.write_text(json.dumps(_trained(folder / "long", rounds))) * 0)
    if os.waitpid(process, 0)[1]:
        yield "FAILED", "The run did not end."
        return
    found = json.loads(file.read_text())
    yield from [("visits", "")] * found["visits"]
    yield from [("failed visits", "")] * found["failed"]
    first, last = found["memory"][1], found["memory"][-1]
    used = ", ".join(f"{size / 1e6:.1f} MB" for size in found["memory"])
    print(f"Memory after each quarter of the rounds: {used}.")
    yield ("GROWING MEMORY" if last - first > GROWTH else "flat memory"), used


def _trained(out: Path, rounds: int) -> dict[str, Any]:
    chance, memory, visits, failed = random.Random(17), [], 0, 0

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if chance.random() < 1 - (1 - SHARE) ** 0.5:  # A visit has two steps, one on v and one on u.
            raise CannotDo("The battery is empty.")
        return square_error(model, batch)

    def watch(line: Any, done: int, total: int) -> None:
        nonlocal visits, failed
        visits, failed = visits + len(line["asked"]), failed + len(line["failed"])
        if done % max(1, rounds // 4) == 0:
            memory.append(_memory())

    task = affine_task(devices=affine_devices(DEVICES), loss=loss)
    method = FedAlt(shared_lr=0.01, batch_size=DEVICES + 5)
    training = Training(method=method, rounds=rounds, devices_per_round=COHORT)
    plan = Plan(personalize=training, evaluate=Evaluation(devices=COHORT))
    pipeline(task, Partition(Affine(), personal="offset"), plan, out=out, watch=watch)
    return {"visits": visits, "failed": failed, "memory": memory}


def _memory() -> int:
    """Return the memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def two_at_once(bench: Bench) -> Iterator[tuple[str, str]]:
    """Resume a command while it is running, many times; yield the verdict on each and on the first."""
    bench.reset()
    first = bench.place.start(bench.subject.first)
    config = bench.place.folder / OUT / "config.toml"
    while not config.exists() and os.waitid(os.P_PID, first, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.002)
    for _ in range(_MOST):
        if os.waitid(os.P_PID, first, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        second = bench.place.run(bench.subject.resume)
        said = "\n".join(second.lines)
        is_refused = second.code == 2 and len(second.lines) == 1 and "Another process is writing" in said
        # The last one may come when the first has just ended.
        yield ("refused in one line" if is_refused else "same bits" if bench.is_done else "WRONG"), said
        time.sleep(_PAUSE)
    code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    yield ("same bits" if code == 0 and bench.is_done else "WRONG"), f"exit code {code}"
