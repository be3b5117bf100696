"""Several runs of a study at a time: shares of cores, processes that are killed, and the bits of one process."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compared import ROUNDS, done, quiet, started, tables, values
from partita.config.changes import with_values
from partita.executors.serial import SerialExecutor
from partita.params import from_bytes
from partita.report.tables.comparison import write_comparison_tables
from partita.studies import compare, tune
from partita.studies.comparison import Comparison
from partita.studies.cores import Cores
from partita.studies.job_pool import JobPool
from partita.studies.jobs import CallbackFailed, Callbacks, Job, Values
from partita.studies.trials import Sampler
from partita.studies.tuning import Tuning, begin
from partita.training.journal import RoundRow
from partita.training.pipeline import RoundCallback
from small import same_bits

LINE = {"stage": "pretrained", "work": "update", "round": 0, "rounds": 9, "final": False, "loss": 1.0}


class Jobs:
    """A study of some jobs; a job may depend on others, which must have ended."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        self.left = [Job(job["name"], job["name"], job, self) for job in jobs]
        self.total = len(jobs)
        self.begun: list[str] = []
        self.results: dict[str, Values | Exception] = {}

    def next(self) -> Job | None:
        ready = [job for job in self.left if set(job.values.get("after", [])) <= self.results.keys()]
        if not ready:
            return None
        self.left.remove(ready[0])
        return ready[0]

    @property
    def is_over(self) -> bool:
        return len(self.results) == self.total

    @property
    def progress(self) -> tuple[float, int]:
        return len(self.results), self.total

    def begin(self, job: Job) -> None:
        self.begun.append(job.name)

    def note(self, job: Job, line: RoundRow) -> None:
        if job.values.get("is_bad"):
            job.is_settled = True
            self.results[job.name] = {"stopped": True}

    def end(self, job: Job, result: Values) -> None:
        self.results[job.name] = result

    def fail(self, job: Job, error: Exception) -> None:
        self.results[job.name] = error


def carried_out(
    jobs: Jobs, work: Callable[..., Values], cores: int = 2, callbacks: Callbacks | None = None
) -> Jobs:
    with JobPool(cores, work) as pool:
        pool.carry_out(jobs, callbacks or Callbacks(quiet))
    return jobs


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


def test_the_first_and_the_last_job_have_all_cores(tmp_path: Path) -> None:
    def work(values: Values, watch: RoundCallback, cores: Cores) -> Values:
        assert callable(cores)
        if values["name"] == "second":
            wait_for(lambda: cores() == 2)  # There is another job, and a third core.
            (tmp_path / "second").touch()
            wait_for((tmp_path / "third").exists)
        if values["name"] == "third":
            wait_for((tmp_path / "second").exists)
            both = cores()
            (tmp_path / "third").touch()
            wait_for(lambda: cores() == 3)  # The second job has ended.
            return {"cores": [both, cores()]}
        if values["name"] == "first":
            wait_for(lambda: cores() == 3)  # The others wait for it.
        return {"cores": cores()}

    after = {"after": ["first"]}
    jobs = Jobs({"name": "first"}, {"name": "second", **after}, {"name": "third", **after})
    carried_out(jobs, work, cores=3)

    assert jobs.begun == ["first", "second", "third"]
    assert [jobs.results[name] for name in jobs.begun] == [{"cores": 3}, {"cores": 2}, {"cores": [1, 3]}]


def test_runs_at_the_same_time_have_different_accelerators(tmp_path: Path) -> None:
    def work(values: Values, *_: Any) -> Values:
        (tmp_path / values["name"]).touch()
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        return {"worker": SerialExecutor.first_worker}

    jobs = carried_out(Jobs({"name": "first"}, {"name": "second"}), work)

    assert [jobs.results[name] for name in ("first", "second")] == [{"worker": 0}, {"worker": 1}]
    assert SerialExecutor.first_worker == 0


def test_a_process_that_is_killed_is_replaced_once(tmp_path: Path) -> None:
    def work(values: Values, *_: Any) -> Values:
        path = tmp_path / values["name"]
        if values["name"] == "always" or not path.exists():
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"process": os.getpid()}

    jobs = carried_out(Jobs({"name": "once"}, {"name": "always"}), work)

    assert sorted(jobs.begun) == ["always", "always", "once", "once"]
    assert jobs.results["once"] != {"process": os.getpid()}
    assert str(jobs.results["always"]) == (
        "its process was killed by signal 9, also when it was started again: there may not be enough memory "
        "for it"
    )


def test_exceptions_log_messages_and_printed_text_arrive_in_the_parent(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def work(values: Values, *_: Any) -> Values:
        sys.stdout.write("printed\n")
        logging.getLogger("partita.mine").warning("logged by %s", values["name"])
        if values["name"] == "bad":
            raise ZeroDivisionError("my own mistake")
        return {}

    jobs = carried_out(Jobs({"name": "good"}, {"name": "bad"}), work)

    error = jobs.results["bad"]
    assert isinstance(error, ZeroDivisionError)
    assert str(error) == "my own mistake"
    assert jobs.results["good"] == {}
    assert capsys.readouterr().out == "printed\nprinted\n"
    assert sorted(caplog.messages) == ["logged by bad", "logged by good"]


def endless(values: Values, watch: RoundCallback, cores: Cores) -> Values:
    """Rounds until the process is stopped; it says so then, as a watcher that closes what it has opened."""
    try:
        while True:
            watch({**LINE, "process": os.getpid()}, 1, 2)
            time.sleep(0.005)
    finally:
        Path(values["closed"]).touch()


def test_a_job_whose_result_is_known_is_stopped(tmp_path: Path) -> None:
    jobs = carried_out(Jobs({"name": "bad", "is_bad": True, "closed": str(tmp_path / "closed")}), endless)

    assert jobs.results == {"bad": {"stopped": True}}
    assert (tmp_path / "closed").exists()


def test_an_exception_of_a_callback_ends_all_processes(tmp_path: Path) -> None:
    processes: dict[str, int] = {}

    def refuse(line: RoundRow, *_: Any) -> None:
        processes[line["run"]] = line["process"]
        if len(processes) == 2:
            raise BrokenPipeError

    jobs = Jobs(*({"name": name, "closed": str(tmp_path / name)} for name in ("a", "b", "c")))
    with pytest.raises(CallbackFailed):
        carried_out(jobs, endless, callbacks=Callbacks(quiet, refuse))

    assert set(processes) == {"a", "b"}
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    for process in processes.values():
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


METHODS = ("fedalt", "finetune")


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """A comparison with a tuned method that fails, in one process."""
    comparison, _ = done(tmp_path_factory.mktemp("serial") / "grid", given())
    return comparison


def given() -> dict[str, Any]:
    diverges = {"fedalt": {"personalize": {"shared_lr": 1e30, "personal_lr": 1e30}}}
    return values("fedalt", "fedsim", "finetune", compare={"seeds": 1, "tune": 2, "settings": diverges})


@contextmanager
def with_workers(workers: int, comparison: Comparison) -> Iterator[Any]:
    several = replace(comparison, values=with_values(comparison.values, {"workers": workers}))
    with compare.runner_for(several) as runner:
        yield runner


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_a_comparison_has_the_same_tables_and_bits_with_any_number_of_workers(
    serial: Comparison, tmp_path: Path, workers: int
) -> None:
    order: list[str] = []
    comparison = started(tmp_path / "grid", given())
    with with_workers(workers, comparison) as runner:
        failed = compare.finish(comparison, quiet, lambda line, *_: order.append(line["run"]), runner)
    write_comparison_tables(comparison, failed)

    assert failed == serial.failed() != {}
    assert tables(comparison.folder) == tables(serial.folder)
    for cell in serial.cells:
        if cell.name not in failed:
            for name in ("devices.parquet", "summary.json"):
                path = serial.folder_of(cell) / name
                assert (comparison.folder_of(cell) / name).read_bytes() == path.read_bytes(), path
    # Every cell began after the one that it begins from had ended.
    for cell in comparison.cells:
        start = comparison.start_of(cell)
        if start is not None and cell.name not in failed:
            last = len(order) - 1 - order[::-1].index(f"cells/{start.name}")
            assert order.index(f"cells/{cell.name}") > last, cell.name


@pytest.mark.slow
def test_a_cell_that_is_killed_resumes_from_its_last_round(tmp_path: Path) -> None:
    whole, _ = done(tmp_path / "whole", values(compare={"seeds": 1}))
    comparison = started(tmp_path / "grid", values(compare={"seeds": 1}))
    killed = tmp_path / "killed"

    def work(job: Values, watch: RoundCallback, cores: Cores) -> Values:
        def kill(line: RoundRow, number: int, total: int) -> None:
            watch(line, number, total)
            if job["cell"] == "fedavg-3" and number == 2 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        return compare.carry_out(comparison, job, kill, cores)

    rounds: list[str] = []
    with JobPool(2, work) as pool:
        assert compare.finish(comparison, quiet, lambda line, *_: rounds.append(line["run"]), pool) == {}

    assert killed.exists()
    runs = [
        each.run_of(cell) for each in (whole, comparison) for cell in each.cells if cell.method == "fedavg"
    ]
    assert rounds.count("cells/fedavg-3") == len(list(runs[0].committed_rounds()))
    assert same_bits(*(from_bytes(run.shared_file("personalized").read_bytes()) for run in runs))


SPACE = {"personalize.shared_lr": [0.1, 0.08, 0.06, 1e-6, 0.07]}
"""Five trials, of which the fourth is stopped early."""


def search_in(folder: Path, workers: int) -> Tuning:
    rounds = {**ROUNDS, "rounds": 5, "method": "fedavg"}
    own = values(personalize=rounds, compare={})
    return begin({**own, "workers": workers, "out": str(folder)}, Path(), SPACE, 0)


@pytest.mark.slow
def test_a_search_has_the_same_trials_with_any_number_of_workers(tmp_path: Path) -> None:
    found: dict[int, Any] = {}
    for workers in (1, 2, 4):
        search = search_in(tmp_path / str(workers), workers)
        with tune.runner_for(search) as runner:
            found[workers] = tune.tune(search, on_progress=quiet, runner=runner)

    assert found[2] == found[1]
    assert found[4] == found[1]
    assert found[1].trials[3].status.startswith("stopped after")


@pytest.mark.parametrize("trials", [0, 16])
def test_values_are_chosen_ahead_as_long_as_they_do_not_depend_on_results(trials: int) -> None:
    space = {"a": list(range(6)), "b": list(range(5))}

    def chosen(at_a_time: int) -> list[dict[str, Any]]:
        """Choose values, and give them results in their order, as late as possible."""
        sampler = Sampler(space, own={"a": 1, "b": 1}, direction="up", seed=5, trials=trials)
        choices: list[dict[str, Any]] = []
        running: list[Any] = []
        while sampler.can_choose or running:
            while sampler.can_choose and len(running) < at_a_time:
                trial, choice = sampler.next()
                choices.append(choice)
                running.append((trial, float(choice["a"] * 10 - choice["b"])))
            sampler.record(*running.pop(0))
        return choices

    assert chosen(7) == chosen(1)
    assert len(chosen(1)) == (trials or 30)
