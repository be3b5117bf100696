"""Every executor gives the same bits: in one process, in one worker process and in several."""

import contextlib
import gc
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from marks import slow_but
from partita import (
    CannotDo,
    Evaluation,
    FedAlt,
    FedAvg,
    Finetuning,
    LocalScaffold,
    Method,
    Partition,
    Plan,
    Result,
    Task,
    Training,
    pipeline,
)
from partita.cli import main
from ranks import content_of as bits_of
from ranks import end_of, start_ranks
from small import Affine, affine_devices, affine_task, normed_task, passing_task, same_bits, square_error

PLAN = Plan(
    pretrain=Training(method=FedAvg(shared_lr=0.1, batch_size=4), rounds=2, devices_per_round=3),
    personalize=Training(method=FedAlt(shared_lr=0.1, batch_size=4), rounds=3, devices_per_round=4),
    finetune=Finetuning(personal_lr=0.1, epochs=2, batch_size=4),
    evaluate=Evaluation(every=2),
)
ONE = {"workers": 0, "timeout": 1000}
"""Options for one worker process: tests see one core, and `workers=1` is none."""


def content_of(folder: Path) -> dict[str, Any]:
    """Return all files of a run's folder that must be the same; lines of rounds without their seconds."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {path: str(path.relative_to(folder)) for path in files}
    content: dict[str, Any] = {name: path.read_bytes() for path, name in names.items()}
    for name in [name for name in content if name.endswith(("config.toml", "commit.json"))]:
        del content[name]
    for name in [name for name in content if name.endswith("rounds.jsonl")]:
        lines = [json.loads(line) for line in content[name].splitlines()]
        content[name] = json.dumps([{**line, "seconds": None} for line in lines])
    return content


def failing_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Diverge on batches of 2, and cannot do batches of 3."""
    if len(batch[1]) == 3:
        raise CannotDo("Batches of three are too much.")
    return square_error(model, batch) * (float("nan") if len(batch[1]) == 2 else 1.0)


def with_method(plan: Plan, method: Method, **changes: Any) -> Plan:
    assert plan.personalize is not None
    return replace(plan, personalize=replace(plan.personalize, method=method, **changes))


def offset(task: Task) -> Partition:
    return Partition(task.model(), personal="offset")


SCAFFOLD = Method(local=LocalScaffold, shared_lr=0.1, batch_size=4, personal_epochs=0)
CASES: dict[str, Callable[[], tuple[Task, Partition, Plan]]] = {
    "three stages": lambda: (task := affine_task(), offset(task), PLAN),
    "batch statistics": lambda: (task := normed_task(), Partition(task.model(), personal="head.*"), PLAN),
    "control variates": lambda: (task := affine_task(), offset(task), with_method(PLAN, SCAFFOLD)),
    "stateless": lambda: (
        task := affine_task(),
        offset(task),
        with_method(PLAN, FedAlt(shared_lr=0.1, batch_size=4, stateful=False)),
    ),
    "early stopping": lambda: (
        task := passing_task(),
        offset(task),
        with_method(replace(PLAN, pretrain=None), FedAlt(shared_lr=0.3), rounds=12, patience=2),
    ),
    "unseen devices": lambda: (
        task := affine_task(devices=affine_devices(12)),
        offset(task),
        replace(PLAN, evaluate=Evaluation(unseen=0.3)),
    ),
    "devices that fail": lambda: (task := affine_task(loss=failing_loss), offset(task), PLAN),
    "nothing personal": lambda: (
        task := affine_task(),
        Partition(task.model(), shared="*"),
        replace(PLAN, finetune=None),
    ),
}


def run(case: str, folder: Path, **options: Any) -> dict[str, Any]:
    task, partition, plan = CASES[case]()
    pipeline(task, partition, plan, out=folder, **options)
    return content_of(folder)


@pytest.mark.parametrize("case", slow_but(CASES, "three stages"))
def test_worker_processes_give_the_same_bits(case: str, tmp_path: Path) -> None:
    expected = run(case, tmp_path / "serial", workers=1)

    assert run(case, tmp_path / "workers", workers=3) == expected


@pytest.mark.slow
@pytest.mark.parametrize("case", ["three stages", "control variates", "devices that fail"])
def test_one_two_or_three_worker_processes_give_the_same_bits(case: str, tmp_path: Path) -> None:
    expected = run(case, tmp_path / "serial", workers=1)
    counts: set[int] = set()

    three, two = (run(case, tmp_path / str(workers), workers=workers) for workers in (3, 2))
    one = run(case, tmp_path / "one", **ONE, watch=lambda *line: counts.add(len(worker_pids())))

    assert three == expected
    assert two == expected
    assert one == expected
    assert counts == {1}


def test_a_run_in_memory_gives_the_same_bits_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def result(workers: int) -> Result:
        task = affine_task()
        return pipeline(task, offset(task), PLAN, workers=workers)

    serial, parallel = result(1), result(2)

    assert list(tmp_path.iterdir())
    for device in affine_devices():
        assert same_bits(parallel.personal(device), serial.personal(device))
    assert same_bits(parallel.shared, serial.shared)
    assert parallel.devices == serial.devices
    del parallel
    gc.collect()
    assert not list(tmp_path.iterdir())


def dying_task(folder: Path, device: str, *, always: bool) -> Task:
    """A task whose loss kills its own process on one device: once, or always."""
    devices = affine_devices()
    targets = devices[device]["train"][1]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        mark = folder / "died"
        own = all((targets == target).any() for target in batch[1])
        if model.training and own and (folder / "armed").exists() and (always or not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return square_error(model, batch)

    return affine_task(loss=loss, devices=devices)


def test_a_worker_that_is_killed_once_changes_no_bit(tmp_path: Path) -> None:
    task = dying_task(tmp_path, "d3", always=False)
    expected = run("three stages", tmp_path / "serial")
    (tmp_path / "armed").touch()

    pipeline(task, offset(task), PLAN, out=tmp_path / "killed", workers=2)

    assert (tmp_path / "died").exists()
    assert content_of(tmp_path / "killed") == expected


def test_a_device_on_which_workers_are_killed_twice_is_a_failure_of_the_round(tmp_path: Path) -> None:
    task = dying_task(tmp_path, "d3", always=True)
    both, first = (
        Plan(personalize=Training(method=FedAlt(shared_lr=0.1), rounds=rounds, devices_per_round=6))
        for rounds in (2, 1)
    )

    def arm(line: Any, done: int, total: int) -> None:
        if line["work"] == "update":
            (tmp_path / "armed").touch()

    result = pipeline(task, offset(task), both, workers=2, watch=arm, out=tmp_path / "run")

    rounds = [line for line in result.rounds if line["work"] == "update"]
    reason = "The worker process was killed by signal 9 during this visit, twice."
    assert [line["failed"] for line in rounds] == [{}, {"d3": reason}]
    assert len(rounds[1]["heard"]) == 5
    assert not list((tmp_path / "run" / "personal").glob("*.next"))
    before = pipeline(affine_task(), offset(task), first)
    assert same_bits(result.personal("d3"), before.personal("d3"))
    assert not same_bits(result.personal("d2"), before.personal("d2"))


@pytest.mark.slow
def test_a_visit_that_takes_too_long_is_a_failure_and_the_run_goes_on() -> None:
    devices, parent = affine_devices(), os.getpid()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        while model.training and len(batch[1]) == 5 and os.getpid() != parent:
            time.sleep(0.01)
        return square_error(model, batch)

    task = affine_task(loss=loss, devices={name: devices[name] for name in ("d0", "d1", "d2")})
    plan = Plan(personalize=Training(method=FedAlt(shared_lr=0.1), rounds=1, devices_per_round=3))

    result = pipeline(task, offset(task), plan, workers=2, timeout=1)

    (line,) = (line for line in result.rounds if line["work"] == "update")
    assert line["failed"]["d0"] == "The visit took longer than `timeout` = 1 s, twice."
    assert line["heard"]


def worker_pids() -> list[int]:
    """Return the processes that a process of this one has started."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            _, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            parents.setdefault(int(parent), []).append(int(folder.name))
    return [pid for nursery in parents.get(os.getpid(), []) for pid in parents.get(nursery, [])]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_500_rounds_with_a_worker_killed_every_20_change_no_bit(tmp_path: Path) -> None:
    task, draw = affine_task(devices=affine_devices(20)), random.Random(1)
    method = FedAlt(shared_lr=0.01, batch_size=4)
    plan = Plan(personalize=Training(method=method, rounds=500, devices_per_round=10))
    killed: list[int] = []

    def kill(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    def watch(line: Any, done: int, total: int) -> None:
        if done % 20 == 0 and done < total:
            threading.Timer(draw.uniform(0, 0.01), kill, [draw.choice(worker_pids())]).start()

    pipeline(task, offset(task), plan, out=tmp_path / "serial")
    pipeline(task, offset(task), plan, out=tmp_path / "killed", workers=2, watch=watch)

    assert len(killed) >= 20
    assert content_of(tmp_path / "killed") == content_of(tmp_path / "serial")


class Whole(nn.Module):
    """A model with an integer buffer that each device changes in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Affine()
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.seen += len(inputs)
        return self.inner(inputs)


@pytest.mark.slow
def test_integer_buffers_are_those_of_the_lowest_device_with_any_number_of_workers(tmp_path: Path) -> None:
    plan = Plan(personalize=Training(method=FedAvg(shared_lr=0.1), rounds=2, devices_per_round=6))
    task = affine_task(model=Whole)

    results = [pipeline(task, Partition(Whole(), shared="*"), plan, workers=n) for n in (1, 2, 3)]

    # d0 has 5 examples, which it sees once in each of the 2 rounds.
    assert [result.shared["seen"].tolist() for result in results] == [[10, 10]] * 3


def test_a_change_that_cannot_be_added_is_a_failure_with_the_same_reason() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            if len(batch[1]) == 5:
                model.slope.weight.fill_(3e38).mul_(-1.0)
        return square_error(model, batch) * 0

    task = affine_task(loss=loss)
    plan = Plan(personalize=Training(method=FedAvg(shared_lr=0.1), rounds=1, devices_per_round=6))

    first, second = (
        pipeline(task, Partition(Affine(), shared="*"), plan, workers=workers).rounds[0] for workers in (1, 2)
    )

    assert {**first, "seconds": 0} == {**second, "seconds": 0}


BATCH_NORM = """
from torch import nn

def make(classes: int = 10) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, classes)
    )
"""
DATA = os.environ.get("PARTITA_DATA", "")


def bits_of_all_executors(*arguments: str) -> list[dict[str, Any]]:
    """Run a command with 1, 2 and 3 workers, one worker process, 1 and 3 ranks; return what each has written."""
    for workers in (1, 2, 3):
        assert main(["run", *arguments, f"workers={workers}", f"out=workers-{workers}", "--quiet"]) == 0
    one = [f"{key}={value}" for key, value in ONE.items()]
    assert main(["run", *arguments, *one, "out=one-process", "--quiet"]) == 0
    for count in (1, 3):
        ends = end_of(start_ranks(count, *arguments, f"out=ranks-{count}", folder=Path()), timeout=250)
        assert [code for code, _, _ in ends] == [0] * count
    runs = ("workers-1", "workers-2", "workers-3", "one-process", "ranks-1", "ranks-3")
    return [bits_of(Path(run)) for run in runs]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not DATA, reason="$PARTITA_DATA does not say where the tables are")
@pytest.mark.parametrize("model", ["name = 'resnet'\ndepth = 10\nwidth = 0.25", "name = 'normed:make'"])
def test_runs_on_qmnist_give_the_same_bits_with_any_executor(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("normed.py").write_text(BATCH_NORM)
    personal = "output" if "resnet" in model else "4.*"
    Path("mine.toml").write_text(
        f"[task]\nkind = 'image'\ndata = 'qmnist_writers.parquet'\nsize = 14\ndevices = 20\n[model]\n{model}\n"
    )
    few = ["pretrain.rounds=2", "personalize.rounds=2", "finetune.epochs=1", f"partition.personal={personal}"]

    first, *others = bits_of_all_executors("mine.toml", *few)

    assert [each == first for each in others] == [True] * 5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_quickstart_gives_the_same_bits_with_any_executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    first, *others = bits_of_all_executors()

    assert [each == first for each in others] == [True] * 5
