"""Ctrl-C and SIGTERM: the round is finished and committed, a second signal ends the command at once."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from marks import slow_but
from partita.cli import main
from partita.cli.signals import Interrupts
from partita.errors import Terminated
from partita.runs.folder import RunFolder
from partita.studies.job_pool import JobPool

SLOW_TASK = """
import time
from partita import Task
from partita.tasks.synthetic import synthetic

def task(seconds: float = 0.05, validation: float = 0.0):
    made = synthetic(devices=3, examples=6, validation=validation)
    def slow(*arguments):
        time.sleep(seconds)
        return made.loss(*arguments)
    return Task(model=made.model, loss=slow, metrics=made.metrics, devices=made.devices)
"""
CONFIG = """
workers = 1
[task]
kind = "slow_task:task"
[pretrain]
rounds = 3
devices_per_round = 2
[personalize]
rounds = 3
devices_per_round = 2
[finetune]
epochs = 1
[compare]
methods = ["fedalt", "fedsim"]
seeds = 1
"""
COMMANDS = {
    "run": ["run", "c.toml"],
    "compare": ["compare", "c.toml"],
    "tune": ["tune", "c.toml", "finetune.personal_lr=0.1,0.01", "evaluate.every=0"],
}
NOTICE = "partita: Finishing this round first; a second Ctrl-C stops at once.\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "slow_task.py").write_text(SLOW_TASK)
    (tmp_path / "c.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_the_first_signal_waits_for_the_end_of_the_round(
    number: signal.Signals, error: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    def rounds() -> None:
        with Interrupts() as interrupts:
            watch = interrupts.after(lambda line, done, total: seen.append(done))
            watch({}, 1, 3)
            os.kill(os.getpid(), number)
            time.sleep(0.1)  # The round goes on.
            watch({}, 2, 3)
            watch({}, 3, 3)

    with pytest.raises(error):
        rounds()

    assert seen == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_signal_raises_at_once() -> None:
    def rounds() -> None:
        with Interrupts():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("The second signal was not noticed.")

    with pytest.raises(KeyboardInterrupt):
        rounds()


def test_signals_of_a_launcher_at_the_same_time_are_one() -> None:
    def rounds() -> None:
        with Interrupts(has_launcher=True) as interrupts:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
                os.kill(os.getpid(), number)
            seen.append(1)
            interrupts.after(lambda *_: seen.append(2))({}, 1, 2)
            seen.append(3)

    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        rounds()

    assert seen == [1, 2]


def test_a_signal_after_the_last_round_ends_the_command_too() -> None:
    with pytest.raises(Terminated), Interrupts():
        os.kill(os.getpid(), signal.SIGTERM)


def test_ignored_signals_stay_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

        assert interrupts.ending() is None


def during_a_round(rounds: int, then: Callable[[], None]) -> Callable[..., Any]:
    """Return a commit that calls a function before the given one of all commits."""
    from partita.runs.journal import FolderJournal

    commit, count = FolderJournal.commit, 0

    def counted(self: FolderJournal, *arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == rounds:
            then()
        commit(self, *arguments)

    return counted


@pytest.mark.parametrize("command", slow_but(COMMANDS, "run"))
def test_a_command_commits_the_round_and_is_resumed_with_the_same_bits(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    arguments = [*COMMANDS[command], "task.seconds=0", "--quiet"]
    assert main([*arguments, "out=whole"]) == 0
    capsys.readouterr()
    with monkeypatch.context() as patched:
        stop = during_a_round(5, lambda: os.kill(os.getpid(), signal.SIGTERM))
        patched.setattr("partita.runs.journal.FolderJournal.commit", stop)
        assert main([*arguments, "out=x"]) == 143

    assert sum(rounds_in(here / "x").values()) == 5
    notice, line = capsys.readouterr().err.splitlines(keepends=True)
    assert notice == NOTICE
    assert line == f"partita: Interrupted. Resume with `partita {command} --resume x`.\n"
    assert main([command, "--resume", "x", "--quiet"]) == 0
    assert results(here / "x") == results(here / "whole")


def test_onboarding_commits_the_round_and_is_resumed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, devices in (("t", range(3)), ("new", range(3, 6))):
        rows = [
            {
                "device": f"d{device}",
                "x": float(row),
                "label": row % 2,
                "split": "test" if row > 4 else "train",
            }
            for device in devices
            for row in range(8)
        ]
        pq.write_table(pa.Table.from_pylist(rows), f"{name}.parquet")
    tabular = CONFIG.replace('"slow_task:task"', '"tabular"\ndata = "t.parquet"')
    (here / "t.toml").write_text(tabular)
    for out in ("x", "whole"):
        assert main(["run", "t.toml", f"out={out}", "--quiet"]) == 0
    assert main(["onboard", "whole", "new.parquet", "--quiet"]) == 0
    capsys.readouterr()
    with monkeypatch.context() as patched:
        stop = during_a_round(2, lambda: os.kill(os.getpid(), signal.SIGINT))
        patched.setattr("partita.runs.journal.FolderJournal.commit", stop)
        assert main(["onboard", "x", "new.parquet", "--quiet"]) == 130

    line = capsys.readouterr().err.splitlines()[-1]
    assert line == "partita: Interrupted. Resume with `partita onboard x --resume`."
    assert rounds_in(here / "x")["onboarded/1"] == 2
    assert main(["onboard", "x", "--resume", "--quiet"]) == 0
    assert results(here / "x") == results(here / "whole")


class Twice:
    """A study of two jobs, of which the second must not begin."""

    def __init__(self) -> None:
        from partita.studies.jobs import Job

        self.left = [Job(name, name, {"name": name}, self) for name in ("a", "b", "c")]
        self.begun: list[str] = []

    is_over = False
    progress = 0.0, 3

    def next(self) -> Any:
        return self.left.pop(0) if self.left else None

    def begin(self, job: Any) -> None:
        self.begun.append(job.name)

    def note(self, job: Any, line: Any) -> None: ...

    def end(self, job: Any, result: Any) -> None:
        pytest.fail("A job was not ended.")

    def fail(self, job: Any, error: Exception) -> None:
        raise error


@pytest.mark.slow
def test_all_processes_of_a_study_end_after_their_rounds(tmp_path: Path) -> None:
    from partita.studies.jobs import Callbacks

    line = {"stage": "pretrained", "work": "update", "round": 0, "rounds": 9, "final": False, "loss": 1.0}
    rounds: list[str] = []
    ending: list[BaseException] = []

    def work(values: Any, watch: Any, cores: Any) -> Any:
        for number in range(3):
            time.sleep(0.3)
            (tmp_path / f"{values['name']}-{number}").touch()
            watch(line, number + 1, 9)
        return {}

    def after_the_first(line: Any, done: int, total: int) -> None:
        rounds.append(line["run"])
        if not ending:
            ending.append(Terminated())

    study = Twice()
    with pytest.raises(Terminated), JobPool(2, work, lambda: ending[0] if ending else None) as pool:
        pool.carry_out(study, Callbacks(lambda *_: None, after_the_first))

    assert study.begun == ["a", "b"]
    committed = sorted(path.name for path in tmp_path.iterdir())
    assert {"a-0", "b-0"} <= {*committed}
    assert len(committed) <= 4  # Both rounds that were running, and at most one more each.


def rounds_in(folder: Path) -> dict[str, int]:
    """Return the number of committed rounds of every run in a folder."""
    return {
        str(path.parent.relative_to(folder)): sum(1 for _ in RunFolder(path.parent).lines())
        for path in folder.rglob("rounds.jsonl")
        if (path.parent / "commit.json").exists()
    }


def results(folder: Path) -> dict[str, Any]:
    """Return what the promise of the same bits covers."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".safetensors", ".parquet") or path.name == "summary.json":
            found[str(path.relative_to(folder))] = path.read_bytes()
        if path.name == "rounds.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[str(path.relative_to(folder))] = [{**line, "seconds": 0} for line in lines]
    return found


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "partita", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, start_new_session=True, **pipes)


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_to_all_processes_lets_them_finish_their_rounds(
    here: Path, command: str, workers: int, number: signal.Signals
) -> None:
    arguments = [*COMMANDS[command], f"workers={workers}", "out=x", "task.seconds=0.1", "--quiet"]
    process = started(*arguments)
    until(lambda: sum(rounds_in(here / "x").values()) >= 2, process)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 128 + number, errors
    assert errors.splitlines(keepends=True) == [
        NOTICE,
        f"partita: Interrupted. Resume with `partita {command} --resume x`.\n",
    ]
    lines = [
        json.loads(line) for path in here.rglob("rounds.jsonl") for line in path.read_text().splitlines()
    ]
    assert not any(line["failed"] for line in lines)
    assert main([command, "--resume", "x", "--quiet"]) == 0
    assert main([*COMMANDS[command], "out=whole", "task.seconds=0.1", "--quiet"]) == 0
    assert results(here / "x") == results(here / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_does_not_wait_for_the_round(here: Path, workers: int) -> None:
    process = started("run", "c.toml", f"workers={workers}", "out=x", "task.seconds=1", "--quiet")
    until(lambda: bool(rounds_in(here / "x")), process)
    time.sleep(0.5)  # The next round has begun.
    rounds = rounds_in(here / "x")["."]
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.3)
    begin = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert time.monotonic() - begin < 2.0
    assert errors == f"{NOTICE}partita: Interrupted. Resume with `partita run --resume x`.\n"
    assert rounds_in(here / "x")["."] <= rounds + 1
    assert main(["run", "--resume", "x", "--quiet"]) == 0


@pytest.mark.slow
def test_ctrl_c_at_any_moment_of_a_start_is_one_line(here: Path) -> None:
    moments = [0.1 * moment for moment in range(1, 25)]
    for moment in moments:
        process = started("run", "c.toml", f"out=at-{moment:.1f}", "task.seconds=1", "--quiet")
        timer = threading.Timer(moment, os.killpg, (process.pid, signal.SIGINT))
        timer.start()
        _, errors = process.communicate(timeout=60)
        timer.join()

        assert process.returncode in (130, -signal.SIGINT), errors
        own = [line for line in errors.splitlines(keepends=True) if line != NOTICE]
        assert len(own) <= 1, errors
        assert all(line.startswith("partita: Interrupted.") for line in own)
