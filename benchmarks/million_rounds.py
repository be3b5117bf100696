"""Rounds with 1,000,000 registered devices against rounds with 1,000: time and memory.

    python benchmarks/million_rounds.py

Two processes run the same rounds of FedAlt, with personal parts on disk, in turn: whatever else the machine
does hits both. Data is drawn when a device is visited, so that what is measured is the registration itself.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from process_memory import memory
from row import Row

DEVICES = 1_000, 1_000_000
ROUNDS, COHORT, EXAMPLES = 40, 50, 10


def visit_rounds(devices: int, folder: Path) -> None:
    """Run the rounds in this process: after each one, print what it took and wait for a line."""
    import torch
    from torch import nn

    import partita

    before, begin = memory("VmRSS"), time.perf_counter()

    def load(device: str) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(int(device.removeprefix("device-")))
        inputs = torch.randn(2 * EXAMPLES, 20, generator=generator)
        split = inputs, (inputs.sum(dim=1) > 0).long()
        return {
            "train": tuple(field[:EXAMPLES] for field in split),
            "test": tuple(field[EXAMPLES:] for field in split),
        }

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 2))

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def watch(line: Mapping[str, Any], done: int, total: int) -> None:
        nonlocal begin
        seconds = time.perf_counter() - begin
        found = {"work": line["work"], "seconds": seconds, "memory": memory("VmHWM") - before}
        print(json.dumps({**found, "done": done, "total": total}), flush=True)
        if done < total:
            sys.stdin.readline()
        begin = time.perf_counter()

    task = partita.Task(
        model=model,
        loss=loss,
        metrics={"accuracy": partita.accuracy},
        devices=partita.Devices((f"device-{number:07}" for number in range(devices)), load=load),
    )
    training = partita.Training(method=partita.FedAlt(shared_lr=0.1), rounds=ROUNDS, devices_per_round=COHORT)
    plan = partita.Plan(personalize=training, evaluate=partita.Evaluation(devices=100))
    partita.pipeline(task, partita.Partition(model(), personal="1.*"), plan, out=folder, watch=watch)


class _Run:
    """A process that runs the rounds, one whenever it is told to."""

    def __init__(self, devices: int, folder: Path) -> None:
        command = [sys.executable, __file__, str(devices), str(folder / str(devices))]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.seconds: list[float] = []
        self.setup, self.memory = 0.0, 0

    def next(self) -> bool:
        """Let one more round run, in place, and return whether there was one."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if self.setup:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        if not (line := self.process.stdout.readline()):
            return False
        found = json.loads(line)
        if found["work"] == "update":
            self.seconds.append(found["seconds"])
        self.setup, self.memory = self.setup or found["seconds"], found["memory"]
        return found["done"] < found["total"]


def rows() -> Iterator[Row]:
    """Run the rounds in two processes, in turn, and yield the rows on time and memory."""
    with tempfile.TemporaryDirectory() as folder:
        few, many = (_Run(devices, Path(folder)) for devices in DEVICES)
        while few.next() and many.next():
            pass
        many.next()  # The last round, after which the other process has ended.
        for run in (few, many):
            run.process.communicate()
    cohort = f"FedAlt, {COHORT} devices a round, a linear model"
    yield Row(
        workload=f"a round with {DEVICES[1]:,} registered devices, {cohort}",
        against=f"{DEVICES[0]:,} registered devices",
        goal="slower",
        target=1.1,
        ours=min(many.seconds[1:]),
        other=min(few.seconds[1:]),
    )
    yield Row(
        workload=f"peak memory of {DEVICES[1]:,} registered devices, from the first to the last round",
        goal="under",
        target=100,
        ours=(many.memory - few.memory) / (DEVICES[1] - DEVICES[0]),
        unit="bytes a device",
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        visit_rounds(int(sys.argv[1]), Path(sys.argv[2]))
    else:
        for row in rows():
            print(row)
