"""Runs on several ranks, started as a launcher starts them, and a task for them."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partita import Partition, Plan, Task, pipeline
from partita.device.store import DiskStore, Store
from partita.executors.cluster import ClusterExecutor
from partita.executors.peers import Peers
from partita.executors.processes import Nursery
from partita.executors.rendezvous import Guest
from partita.executors.serial import SerialExecutor
from partita.executors.serving import Rank
from partita.executors.settings import Execution
from partita.partition import personalization_of
from partita.studies.local import local_executor

OWN_TASK = '''
"""A task with BatchNorm, of which one device cannot be trained, and with options that let visits go wrong."""

import os
import time

import torch
from torch import nn

from partita import Task
from partita.errors import CannotDo


class Net(nn.Module):
    parts = {"output": "head.*", "head": "head.*"}

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.head(self.norm(self.body(inputs)).relu())


def accuracy(predictions, targets):
    return (predictions.argmax(-1) == targets).double().mean().item()


def task(seconds=0.0, breaks_on_rank=-1):
    def loss(model, batch):
        inputs, targets = batch
        if model.training and (inputs[:, 0] > 90).any():
            raise CannotDo("The sensor is broken.")
        if (inputs[:, 1] > 9).any() and int(os.environ.get("RANK", 0)) == breaks_on_rank:
            raise ZeroDivisionError("my own mistake")
        time.sleep(seconds)
        return nn.functional.cross_entropy(model(inputs), targets)

    devices = {}
    for number in range(9):
        generator = torch.Generator().manual_seed(number)
        sizes = {"train": 9 + 4 * number, "validation": 6, "test": 8}
        devices[f"d{number}"] = {
            split: (torch.randn(size, 4, generator=generator), torch.randint(0, 3, (size,), generator=generator))
            for split, size in sizes.items()
        }
    devices["d3"]["train"][0][2, 0] = 99.0
    devices["d8"]["train"][0][0, 1] = 10.0
    return Task(model=Net, loss=loss, metrics={"accuracy": accuracy}, devices=devices)
'''
CONFIG = """
workers = 1

[task]
kind = "own_task:task"

[pretrain]
rounds = 2
devices_per_round = 4
batch_size = 4

[personalize]
rounds = 3
devices_per_round = 5
batch_size = 4

[finetune]
epochs = 1
batch_size = 4
"""


def write_task(folder: Path) -> Path:
    """Write the task and a config for it to a folder, and return the config."""
    (folder / "own_task.py").write_text(OWN_TASK)
    (folder / "own.toml").write_text(CONFIG)
    return folder / "own.toml"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_ranks(
    count: int, *arguments: str, folder: Path, others: Path | None = None, **environment: str
) -> list[subprocess.Popen[str]]:
    """Start `partita run` on several ranks, in a folder.

    Args:
        count: the number of ranks.
        arguments: the arguments of the command.
        folder: the current folder of rank 0.
        others: that of the other ranks, by default the same.
        environment: further variables of the other ranks.
    """
    port = str(free_port())
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "partita", "run", "--quiet", *arguments],
            cwd=(others or folder) if rank else folder,
            env={**os.environ, **common, "RANK": str(rank), **(environment if rank else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def end_of(ranks: Sequence[subprocess.Popen[str]], timeout: float = 100) -> list[tuple[int, str, str]]:
    """Return the exit code, the output and the error output of each rank; none is left running."""
    try:
        outputs = [rank.communicate(timeout=timeout) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, *output) for rank, output in zip(ranks, outputs, strict=True)]


def run_on_two_ranks(task: Task, own: Partition, plan: Plan, out: Path, **computing: Any) -> ClusterExecutor:
    """Run a plan in this process, as rank 0, and in another one, and return the executor."""

    def serial(store: Store) -> SerialExecutor:
        execution = Execution(workers=1, **computing)
        executor = local_executor(task, personalization_of(own), plan, store, seed=1, execution=execution)
        assert isinstance(executor, SerialExecutor)
        return executor

    def serve(connection: socket.socket, values: dict[str, Any]) -> None:
        Rank(connection, lambda message, store: serial(store).make_visitor()).serve()

    store = DiskStore(out / "personal")
    with Nursery(serve) as nursery:
        peers = Peers([Guest(1, "elsewhere", nursery.spawn({}).connection)], "here")
        executor = ClusterExecutor(peers, serial(store), store, ({}, {}))
        with peers.connected():
            try:
                pipeline(task, own, plan, out=out, executor=executor, **computing)
            finally:
                peers.end(0)
    return executor


def content_of(run: Path) -> dict[str, Any]:
    """Return everything in a run's folder that has the same bits with any executor."""
    rounds = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    files = [run / "devices.parquet", run / "summary.json", *(run / "shared").iterdir()]
    found: dict[str, Any] = {
        str(file.relative_to(run)): file.read_bytes() for file in [*files, *(run / "personal").iterdir()]
    }
    return found | {"rounds": [{**line, "seconds": 0} for line in rounds]}
