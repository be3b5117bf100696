"""What happens in a worker shows in the run as if it had happened in its own process."""

import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita import FedAlt, FedAvg, Partition, Plan, Task, Training, pipeline
from partita.data.cache import ExampleCache
from partita.data.rows import BadData
from partita.device.store import DiskStore
from partita.errors import ConfigError, described
from partita.executors.settings import Execution, usable_cores
from partita.executors.workers import WorkersExecutor
from partita.params import digest_of
from partita.partition import personalization_of
from partita.protocol import Evaluate, Failure, Order, Reply, Stage, Start, Tally
from partita.studies.local import local_executor
from partita.tasks.image import image
from small import affine_devices, affine_task, normed_task, square_error
from tables import bad_table

PLAN = Plan(personalize=Training(method=FedAlt(shared_lr=0.1, batch_size=4), rounds=2, devices_per_round=6))


def run(task: Task, *, personal: str = "offset", plan: Plan = PLAN, **options: Any) -> Any:
    return pipeline(task, Partition(task.model(), personal=personal), plan, **options)


class Broken(Exception):
    """An exception with a constructor of its own."""

    def __init__(self, device: str, *, code: int) -> None:
        super().__init__(f"{device} is broken: {code}")


def raised(loss: Callable[[nn.Module, Any], Tensor], workers: int) -> BaseException:
    """Return what a run raises whose loss raises in training, but not in the check before the run."""
    armed: list[int] = []

    def guarded(model: nn.Module, batch: Any) -> Tensor:
        return loss(model, batch) if armed else square_error(model, batch)

    plan = Plan(
        personalize=Training(method=FedAvg(shared_lr=0.1, batch_size=100), rounds=1, devices_per_round=6)
    )
    task = affine_task(loss=guarded)
    own = Partition(task.model(), personal="offset")
    # Workers are forked after the check of the task: `armed` is set between the two.
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("partita.api.runs.check_validation", lambda *args, **options: armed.append(1))
        with pytest.raises(BaseException) as caught:  # noqa: PT011
            pipeline(task, own, plan, workers=workers)
    return caught.value


def builtin_error(model: nn.Module, batch: Any) -> Tensor:
    raise KeyError(f"of {len(batch[1])}")


def own_error(model: nn.Module, batch: Any) -> Tensor:
    raise Broken("it", code=len(batch[1]))


def chained_error(model: nn.Module, batch: Any) -> Tensor:
    try:
        return square_error(model, batch[0])
    except Exception as error:
        raise ValueError("no batch") from error


def leaving(model: nn.Module, batch: Any) -> Tensor:
    sys.exit(3)


@pytest.mark.parametrize("loss", [builtin_error, own_error, chained_error, leaving])
def test_an_exception_in_a_visit_is_raised_as_in_a_run_in_one_process(
    loss: Callable[[nn.Module, Any], Tensor],
) -> None:
    expected, error = raised(loss, workers=1), raised(loss, workers=3)

    assert type(error).__mro__[-3:] == type(expected).__mro__[-3:]
    assert isinstance(error, type(expected))
    assert described(error) == described(expected)
    assert "test_workers.py, line" in described(error)
    assert getattr(error, "__notes__", None) == getattr(expected, "__notes__", None)
    assert type(error.__cause__) is type(expected.__cause__)
    assert getattr(error, "code", None) == getattr(expected, "code", None), "the exit code of the command"


def test_text_log_records_and_warnings_of_visits_appear_in_this_process(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        if os.getpid() != parent:
            sys.stdout.write("a line\nanother")
            sys.stdout.flush()
            sys.stdout.buffer.write("bytés\n".encode(sys.stdout.encoding))
            os.write(sys.stdout.fileno(), b"")
            sys.stderr.write("an error\n")
            logging.getLogger("mine").warning("a record of %d", len(batch[1]))
            warnings.warn("a Python warning", RuntimeWarning, stacklevel=1)
        return square_error(model, batch)

    parent = os.getpid()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        run(affine_task(loss=loss), workers=2)

    printed = capsys.readouterr()
    assert "a line\nanother" in printed.out
    assert "bytés\n" in printed.out
    assert "an error\n" in printed.err
    assert "a record of 4" in [record.getMessage() for record in caplog.records if record.name == "mine"]
    # Once, as in one process, though every worker has given it.
    (warning,) = [each for each in caught if "a Python warning" in str(each.message)]
    assert (warning.category, Path(warning.filename).name) == (RuntimeWarning, "test_workers.py")


def test_batches_of_one_are_warned_of_once_with_the_same_device(caplog: pytest.LogCaptureFixture) -> None:
    def logged(workers: int) -> list[str]:
        caplog.clear()
        devices = affine_devices()
        task = affine_task(model=normed_task().model, devices=devices)
        run(task, personal="head.*", workers=workers)
        return [record.getMessage() for record in caplog.records if "BatchNorm" in record.getMessage()]

    (expected,) = logged(1)

    assert logged(2) == [expected]
    assert logged(3) == [expected]


def test_skipped_rows_are_logged_once_in_the_same_order(tmp_path: Path) -> None:
    def logged(workers: int) -> bytes:
        task = image(data=str(bad_table(tmp_path)), size=6, classes=2, skip_bad=True)
        out = tmp_path / f"run-{workers}"
        method = FedAvg(shared_lr=0.1, batch_size=4)
        plan = Plan(personalize=Training(method=method, rounds=2, devices_per_round=4))
        task = task.with_model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 2)))
        pipeline(task, Partition(task.model(), shared="*"), plan, out=out, workers=workers)
        assert len(task.skipped) == 6
        return (out / "skipped.jsonl").read_bytes()

    expected = logged(1)

    assert expected.count(b"\n") == 6
    assert logged(2) == expected


def test_a_bad_row_ends_the_run_as_in_one_process(tmp_path: Path) -> None:
    task = image(data=str(bad_table(tmp_path)), size=6, classes=2)
    task = task.with_model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 2)))
    plan = Plan(personalize=Training(method=FedAvg(shared_lr=0.1), rounds=1, devices_per_round=6))

    with pytest.raises(BadData, match="row 9, device 'd1'"):
        pipeline(task, Partition(task.model(), shared="*"), plan, workers=2)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_row_can_be_a_failure_of_its_device(tmp_path: Path, workers: int) -> None:
    task = image(data=str(bad_table(tmp_path)), size=6, classes=2)
    task = task.with_model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 2)))
    training = Training(method=FedAvg(shared_lr=0.1), rounds=1, devices_per_round=4)
    options: dict[str, Any] = {"workers": workers, "on_error": "skip"}

    result = pipeline(task, Partition(task.model(), shared="*"), Plan(personalize=training), **options)

    (line,) = (line for line in result.rounds if line["work"] == "update")
    assert "row 9, device 'd1'" in line["failed"]["d1"]


def executor_of(task: Task, folder: Path, processes: Callable[[], int]) -> WorkersExecutor:
    own = personalization_of(Partition(task.model(), personal="offset"))
    executor = local_executor(
        task, own, PLAN, DiskStore(folder), seed=1, execution=Execution(workers=2), processes=processes
    )
    assert isinstance(executor, WorkersExecutor)
    return executor


def orders_of(task: Task) -> list[Order]:
    model = task.model()
    parts = Partition(model, personal="offset").of(model)
    start = Start(digest=digest_of(parts.personal), personal=parts.personal, frozen=digest_of({}))
    return [
        Order(
            stage=Stage.PERSONALIZED,
            round=0,
            device=device,
            work=FedAlt(shared_lr=0.1).update,
            shared=parts.shared,
            start=start,
        )
        for device in task.devices
    ]


def pids(executor: WorkersExecutor) -> list[int]:
    return [worker.child.pid for worker in executor._pool.workers]


def test_the_number_of_workers_can_change_between_exchanges(tmp_path: Path) -> None:
    task, numbers = affine_task(), iter((1, 2, 3, 2, 1))
    used: list[list[int]] = []
    kinds: list[dict[str, int]] = []

    with executor_of(task, tmp_path, lambda: next(numbers)) as executor:
        for _ in range(5):
            answers = list(executor.ask(orders_of(task)))
            kinds.append(
                {kind.__name__: sum(isinstance(a, kind) for a in answers) for kind in (Reply, Tally)}
            )
            used.append(pids(executor))

    assert [len(each) for each in used] == [0, 2, 3, 2, 2]
    assert used[1] == used[2][:2] == used[3] == used[4]
    assert [each["Reply"] for each in kinds] == [6] * 5
    assert kinds[0]["Tally"] == kinds[4]["Tally"] == 1  # In this process.


def test_a_worker_that_ended_between_exchanges_is_replaced_without_a_strike(tmp_path: Path) -> None:
    task = affine_task()

    with executor_of(task, tmp_path, lambda: 2) as executor:
        list(executor.ask(orders_of(task)))
        for worker in executor._pool.workers:
            worker.child.kill()
        answers = list(executor.ask(orders_of(task)))
        assert executor.seconds > 0

    assert sum(isinstance(answer, Reply) for answer in answers) == 6
    assert not any(isinstance(answer, Failure) for answer in answers)


def test_there_are_no_more_workers_than_orders(tmp_path: Path) -> None:
    task = affine_task()

    with executor_of(task, tmp_path, lambda: 5) as executor:
        list(executor.ask(orders_of(task)[:3]))
        assert len(pids(executor)) == 3
        list(executor.ask(orders_of(task)[:1]))
        assert len(pids(executor)) == 3


@pytest.mark.slow
def test_a_visit_that_was_answered_in_time_is_not_late_where_the_answer_is_read_late(tmp_path: Path) -> None:
    def predict(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        with (tmp_path / "visits").open("a") as file:
            file.write(f"{len(batch[1])} ")
        time.sleep(0.4 if len(batch[1]) == 10 else 0)
        return model(batch[0]), batch[1]

    task = affine_task(predict=predict)
    work = Evaluate(model="global", splits=("train",))
    orders = [replace(order, work=work) for order in orders_of(task)][-2:]
    own = personalization_of(Partition(task.model(), personal="offset"))
    execution = Execution(workers=2, timeout=1.2)
    with local_executor(task, own, PLAN, DiskStore(tmp_path), seed=1, execution=execution) as executor:
        for _ in executor.ask(orders):
            time.sleep(1.5)

    assert sorted((tmp_path / "visits").read_text().split()) == ["10", "9"]


def test_a_log_message_that_cannot_be_formatted_does_not_end_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        if os.getpid() != parent:
            logging.getLogger("mine").warning("%d examples", "no number")
        return square_error(model, batch)

    parent = os.getpid()
    run(affine_task(loss=loss), workers=2)

    assert "--- Logging error ---" in capsys.readouterr().err


def test_examples_of_all_workers_together_fit_the_memory_of_one_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        if os.getpid() != parent:
            sys.stdout.write(f"{ExampleCache.processes}\n")
        return square_error(model, batch)

    parent = os.getpid()
    run(affine_task(loss=loss), workers=3)

    assert set(capsys.readouterr().out.split()) == {"3"}
    assert ExampleCache.processes == 1


def test_random_state_of_this_process_is_untouched() -> None:
    task = affine_task()
    own = Partition(task.model(), personal="offset")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)

    pipeline(task, own, PLAN, workers=2)

    assert torch.equal(torch.rand(3), expected)


def test_without_worker_processes_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("partita.studies.local.IS_SUPPORTED", False)

    run(affine_task(), workers=2)

    (record,) = caplog.records
    assert record.getMessage().startswith("Worker processes need Linux: devices are visited one by one")
    with pytest.raises(ConfigError, match="`timeout` needs worker processes, which only Linux has"):
        run(affine_task(), workers=2, timeout=5)


def test_a_time_limit_in_one_process_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`timeout` needs worker processes.* set `workers` to 0 "):
        run(affine_task(), timeout=5)
    with pytest.raises(ValueError, match="Give `executor`, or `workers` and `timeout`, not both"):
        run(affine_task(), workers=2, executor=object())


@pytest.mark.parametrize("workers", [2.5, "all", True, None])
def test_a_number_of_workers_that_is_not_whole_is_refused(workers: Any) -> None:
    with pytest.raises(ValueError, match=rf"^`workers` must be a whole number, got {workers!r}\.$"):
        Execution(workers=workers)


def test_some_cores_can_be_used() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


_IN_MEMORY = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from partita import FedAlt, Partition, run
from small import affine_task

task = affine_task()

def watch(line, done, total):
    print("begun", flush=True)
    time.sleep(60)

method = FedAlt(shared_lr=0.1)
run(task, Partition(task.model(), personal="offset"), method, rounds=3, workers=2, watch=watch)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_in_memory_that_is_killed_leaves_no_file(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _IN_MEMORY, str(Path(__file__).parents[1])]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    assert len(list(tmp_path.iterdir())) == 1

    process.send_signal(number)
    process.communicate()

    deadline = time.monotonic() + 30
    while list(tmp_path.iterdir()):
        assert time.monotonic() < deadline, "The temporary folder is left."
        time.sleep(0.01)
