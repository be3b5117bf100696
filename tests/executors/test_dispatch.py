"""Orders are answered once each, whatever happens to the worker that has taken them and many others.

There is one worker here, so that it is known what it has done before: it visits d5 first and d0 last, as the
largest device comes first. It sends nothing before its last visit.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from marks import slow_but
from partita import FedAvg, Partition, Plan, Task, Training
from partita.device.store import DiskStore
from partita.errors import RunFailed
from partita.executors.board import Board
from partita.executors.messages import encoded
from partita.executors.output import Link
from partita.executors.processes import Child, Nursery
from partita.executors.settings import Execution
from partita.executors.workers import WorkersExecutor
from partita.params import digest_of
from partita.partition import personalization_of
from partita.protocol import Evaluate, Failure, Order, Reply, Stage, Start, Tally
from partita.studies.local import local_executor
from small import affine_devices, affine_task, square_error

UPDATE = FedAvg(shared_lr=0.1, batch_size=100).update
EVALUATE = Evaluate(model="global", splits=("train",))
Act = Callable[[], object]


@dataclass
class Trial:
    """A task whose visits are written down, with something that happens in those of some devices."""

    folder: Path
    acts: dict[str, Act] = field(default_factory=dict)
    """What happens in each visit of a device."""
    first: dict[str, Act] = field(default_factory=dict)
    """What happens in the first one only."""

    def visit(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
        device, log = f"d{len(batch[1]) - 5}", self.folder / "visits"
        again = device in self.visits
        with log.open("a") as file:
            file.write(f"{device} ")
        self.acts.get(device, lambda: None)()
        if not again:
            self.first.get(device, lambda: None)()

    @property
    def visits(self) -> list[str]:
        """The devices visited so far, a device that was visited again more than once."""
        log = self.folder / "visits"
        return log.read_text().split() if log.exists() else []

    def task(self, **changes: Any) -> Task:
        parent = os.getpid()

        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            if os.getpid() != parent and model.training:
                self.visit(model, batch)
            return square_error(model, batch)

        def predict(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            if os.getpid() != parent:
                self.visit(model, batch)
            return model(batch[0]), batch[1]

        return affine_task(loss=loss, predict=predict, **changes)

    def answers(self, work: Any, *, timeout: float = 1000.0) -> Iterator[Reply | Tally | Failure]:
        """Yield the answers to an order for each device, from one worker process."""
        task = self.task()
        with self.executor(task, timeout=timeout) as executor:
            yield from executor.ask(orders_of(task, work))

    def executor(self, task: Task, *, timeout: float) -> WorkersExecutor:
        """Return an executor with one worker process."""
        own = Partition(task.model(), personal="offset")
        plan = Plan(
            personalize=Training(method=FedAvg(shared_lr=0.1, batch_size=100), rounds=1, devices_per_round=6)
        )
        executor = local_executor(
            task,
            personalization_of(own),
            plan,
            DiskStore(self.folder / "personal"),
            seed=1,
            execution=Execution(workers=2, timeout=timeout),
            processes=lambda: 1,
        )
        assert isinstance(executor, WorkersExecutor)
        return executor


def orders_of(task: Task, work: Any) -> list[Order]:
    model = task.model()
    parts = Partition(model, personal="offset").of(model)
    start = Start(digest=digest_of(parts.personal), personal=parts.personal, frozen=digest_of({}))
    return [
        Order(stage=Stage.PERSONALIZED, round=0, device=device, work=work, shared=parts.shared, start=start)
        for device in task.devices
    ]


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    monkeypatch.setattr("partita.executors.worker._PATIENCE", 1000.0)
    return Trial(tmp_path)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    time.sleep(600)


def fail() -> None:
    raise KeyError("no such thing")


def stop() -> None:
    raise ValueError("no further")


def heard(answers: list[Reply | Tally | Failure]) -> Counter[str]:
    return Counter(answer.device for answer in answers if isinstance(answer, Reply))


def reasons(answers: list[Reply | Tally | Failure]) -> dict[str, str]:
    return {answer.device: answer.reason for answer in answers if isinstance(answer, Failure)}


ALL = Counter({f"d{number}": 1 for number in range(6)})


@pytest.mark.parametrize("work", [UPDATE, EVALUATE], ids=["update", "evaluate"])
def test_visits_that_were_not_reported_when_the_worker_was_killed_are_made_again(
    trial: Trial, work: Any
) -> None:
    trial.first["d3"] = die

    answers = list(trial.answers(work))

    assert " ".join(trial.visits) == "d5 d4 d3 d2 d1 d0 d5 d4 d3"
    assert heard(answers) == ALL
    assert not reasons(answers)


@pytest.mark.parametrize("work", slow_but([UPDATE, EVALUATE], UPDATE), ids=["update", "evaluate"])
def test_the_device_that_a_worker_was_at_when_it_was_killed_twice_fails_and_no_other(
    trial: Trial, work: Any
) -> None:
    trial.acts["d3"] = die

    answers = list(trial.answers(work))

    assert reasons(answers) == {"d3": "The worker process was killed by signal 9 during this visit, twice."}
    assert heard(answers) == ALL - Counter(["d3"])
    tallied = [device for answer in answers if isinstance(answer, Tally) for device in answer.devices]
    assert sorted(tallied) == (sorted(ALL - Counter(["d3"])) if work is UPDATE else [])


@pytest.mark.slow
def test_a_visit_that_hangs_among_short_ones_fails_and_no_other(trial: Trial) -> None:
    trial.acts["d3"] = hang

    answers = list(trial.answers(UPDATE, timeout=0.5))

    assert reasons(answers) == {"d3": "The visit took longer than `timeout` = 0.5 s, twice."}
    assert heard(answers) == ALL - Counter(["d3"])


@pytest.mark.parametrize("moment", slow_but(["take", "leave"], "leave"))
def test_a_worker_that_is_stopped_between_visits_is_replaced(
    moment: str, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.executors.dispatch._BETWEEN", 0.5)
    act, parent, stopped = getattr(Board, moment), os.getpid(), trial.folder / "stopped"

    def act_and_stop(board: Board, *given: Any) -> Any:
        done = act(board, *given)
        if os.getpid() != parent and len(trial.visits) == 2 and not stopped.exists():
            stopped.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return done

    monkeypatch.setattr(Board, moment, act_and_stop)

    answers = list(trial.answers(UPDATE, timeout=1.0))

    assert stopped.exists()
    assert heard(answers) == ALL
    assert not reasons(answers)


@pytest.mark.slow
def test_a_worker_that_is_stopped_before_it_has_read_its_orders_is_replaced(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.executors.dispatch._BETWEEN", 0.5)
    # With such ids the orders are longer than what a connection takes before some of it is read.
    devices = {device.ljust(100_000, "x"): splits for device, splits in affine_devices().items()}
    task = trial.task(devices=devices)
    orders = orders_of(task, UPDATE)

    with trial.executor(task, timeout=1.0) as executor:
        list(executor.ask(orders[:1]))
        os.kill(executor._pool.workers[0].child.pid, signal.SIGSTOP)
        answers = list(executor.ask(orders))

    assert heard(answers) == Counter(list(devices))
    assert not reasons(answers)


@pytest.mark.slow
def test_a_worker_that_is_stopped_within_a_message_is_replaced(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.executors.dispatch._BETWEEN", 0.5)
    send, stopped = Link.send, trial.folder / "stopped"

    def send_half_and_stop(link: Link, values: Any, *given: Any, **named: Any) -> None:
        if "reports" in values and not stopped.exists():
            stopped.touch()
            link.connection.sendall(encoded(values)[:6])
            os.kill(os.getpid(), signal.SIGSTOP)
        send(link, values, *given, **named)

    monkeypatch.setattr(Link, "send", send_half_and_stop)

    answers = list(trial.answers(UPDATE, timeout=1.0))

    assert stopped.exists()
    assert heard(answers) == ALL
    assert not reasons(answers)


@pytest.mark.slow
def test_workers_that_are_always_stopped_between_visits_end_the_run(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.executors.dispatch._BETWEEN", 0.0)
    monkeypatch.setattr("partita.executors.dispatch._MAX_DEATHS", 2)
    monkeypatch.setattr(Board, "begin", lambda *_: os.kill(os.getpid(), signal.SIGSTOP))

    with pytest.raises(RunFailed, match="end between visits: the last of 2 did nothing for 0.3 s"):
        list(trial.answers(UPDATE, timeout=0.3))


@pytest.mark.slow
def test_many_short_visits_may_take_longer_than_the_time_limit_of_one(trial: Trial) -> None:
    trial.acts = {device: lambda: time.sleep(0.5) for device in ALL}

    answers = list(trial.answers(EVALUATE, timeout=2.5))

    assert trial.visits == ["d5", "d4", "d3", "d2", "d1", "d0"]
    assert heard(answers) == ALL


def test_after_an_exception_only_the_orders_before_it_are_carried_out(trial: Trial) -> None:
    trial.acts["d3"] = fail

    with pytest.raises(KeyError, match="no such thing"):
        list(trial.answers(UPDATE))

    assert trial.visits == ["d5", "d4", "d3", "d2", "d1", "d0"]


def test_of_several_exceptions_the_first_in_the_order_of_the_orders_is_raised(trial: Trial) -> None:
    trial.acts |= {"d4": fail, "d1": stop}

    with pytest.raises(ValueError, match="no further"):
        list(trial.answers(EVALUATE))

    assert trial.visits == ["d5", "d4", "d3", "d2", "d1", "d0"]


def test_an_order_before_an_exception_that_is_lost_with_its_worker_is_carried_out(trial: Trial) -> None:
    trial.acts["d4"] = fail
    trial.first["d2"] = die

    with pytest.raises(KeyError, match="no such thing"):
        list(trial.answers(EVALUATE))

    assert trial.visits == ["d5", "d4", "d3", "d2", "d1", "d0", "d3", "d2"]


def test_a_device_that_kills_workers_before_an_exception_does_not_hide_it(trial: Trial) -> None:
    trial.acts |= {"d4": fail, "d2": die}

    with pytest.raises(KeyError, match="no such thing"):
        list(trial.answers(UPDATE))

    # The visit of d3 is lost with the worker twice, and d5, after the exception, is not missing.
    assert trial.visits == ["d5", "d4", "d3", "d2", "d1", "d0", "d3", "d2", "d3"]


def test_more_orders_than_the_board_has_room_for_are_answered_once(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.executors.board._MOST", 4)

    answers = list(trial.answers(UPDATE))

    assert trial.visits == ["d5", "d4", "d3", "d2", "d1", "d0"]
    assert heard(answers) == ALL


def test_a_system_that_allows_no_further_process_is_named(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.acts["d3"] = die
    spawn, started = Nursery.spawn, list[Child]()

    def once(nursery: Nursery, values: dict[str, Any]) -> Child:
        if started:
            raise RunFailed("No further worker process can be started: too many.")
        started.append(spawn(nursery, values))
        return started[0]

    monkeypatch.setattr(Nursery, "spawn", once)

    with pytest.raises(RunFailed, match="No further worker process can be started: too many."):
        list(trial.answers(UPDATE))


def test_long_visits_are_reported_at_once(tmp_path: Path) -> None:
    trial = Trial(tmp_path, acts={device: lambda: time.sleep(0.05) for device in ALL})
    answers = trial.answers(EVALUATE)

    first = next(answers)

    assert isinstance(first, Reply)
    assert first.device == "d5"
    assert len(trial.visits) < 6
    assert heard([first, *answers]) == ALL
