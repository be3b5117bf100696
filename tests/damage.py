"""The damage matrix: every file of a run is damaged in turn, then the run is resumed, reported and checked.

Each case must be refused in one line, or give the same bits as without the damage. By hand, all cases:

    python tests/damage.py
    python tests/damage.py --sample 200
"""

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

import partita
from partita.cli import main
from partita.config.reading import read_config, read_values
from partita.device.store import DiskStore
from partita.errors import ConfigError
from partita.runs.folder import RunFolder
from partita.runs.onboarded import OnboardedRun
from partita.studies import run as runner
from partita.studies.begin import begin
from partita.studies.compare import finish as finish_comparison
from partita.studies.onboard import onboard

WORK = "work"
"""The folder that is damaged, always at the same place: reports have its name."""
CONFIG = """
name = "small"
workers = 1
[task]
kind = "tabular"
data = "t.parquet"
skip_bad = true
validation = 0.3
[pretrain]
rounds = 2
devices_per_round = 3
batch_size = 4
[personalize]
rounds = 4
devices_per_round = 2
batch_size = 4
[finetune]
epochs = 1
batch_size = 4
[evaluate]
every = 1
[compare]
methods = ["fedalt"]
seeds = 1
"""
LEARNED = ["finetune.epochs=10", "finetune.personal_lr=0.5"]
"""Devices that are trained again learn the one class that all of their new rows have."""
PATIENT = ["personalize.patience=3", "personalize.rounds=6", "personalize.shared_lr=0.5"]


class Killed(BaseException):
    """Stands for a kill at a certain moment."""


@dataclass(frozen=True)
class State:
    """A folder to damage, and how it is resumed."""

    name: str
    make: Callable[[], None]
    """Makes the folder `WORK`."""
    resume: list[str]
    is_finished: bool = True
    has_report: bool = True
    written: str = "."
    """The folder in it that is written when it is resumed."""


@dataclass(frozen=True)
class Case:
    """One damaged file, and what is done then."""

    state: State
    file: str
    damage: str
    action: str


def rows(names: str = "d{}", *, count: int = 4) -> list[dict[str, Any]]:
    """Return the rows of some devices, the last of which is bad."""
    made = [
        {
            "device": names.format(device),
            "split": "test" if number % 4 == 0 else "train",
            "x": float(number * (device + 1)),
            "y": float(number % 3) + device,
            "label": (number + device) % 2,
        }
        for device in range(count)
        for number in range(12)
    ]
    return [*made, {**made[-1], "x": None}]


def stopped(after: int, *overrides: str) -> None:
    """Start a run and stop it after some rounds."""

    def watch(line: Any, done: int, total: int) -> None:
        if done == after:
            raise Killed

    with contextlib.suppress(Killed):
        runner.finish(prepared(*overrides), watch)


def in_commit(commits: int, *overrides: str) -> None:
    """Start a run and stop it right after a commit, before personal parts are in their places."""
    commit, count = DiskStore.commit, 0

    def stop(self: DiskStore, label: str, counted: Any, asked: Any) -> None:
        nonlocal count
        count += label.startswith("personalized") and bool(counted)
        if count == commits:
            raise Killed
        commit(self, label, counted, asked)

    with mock.patch.object(DiskStore, "commit", stop), contextlib.suppress(Killed):
        runner.finish(prepared(*overrides))


def prepared(*overrides: str) -> runner.Prepared:
    return runner.prepare(read_config(Path("small.toml"), [*overrides, f"out={WORK}"]), Path())


def half_compared() -> None:
    """Start a comparison and stop it in its third cell."""
    comparison = begin(read_values(Path("small.toml"), [f"out={WORK}"]), Path())
    seen: Counter[str] = Counter()

    def watch(line: Any, done: int, total: int) -> None:
        seen[line["run"]] += 1
        if len(seen) == 3 and seen[line["run"]] == 3:
            raise Killed

    with contextlib.suppress(Killed):
        finish_comparison(comparison, ignore_progress, watch)


def onboarded() -> None:
    """Let devices join a finished run, train some of them again, and let one of these go back."""
    runner.finish(prepared(*LEARNED))
    quietly_main("onboard", WORK, "new.parquet")
    quietly_main("onboard", WORK, "again.parquet", "--again")
    quietly_main("onboard", WORK, "--back", "new 1")
    assert {"d0", "new 0"} <= {*OnboardedRun(RunFolder(WORK)).onboardings[-1].holds}


def half_onboarded(table: str, *, again: bool = False) -> None:
    """Let devices join a finished run, and stop when they are trained and not evaluated yet."""
    runner.finish(prepared(*LEARNED))
    if again:
        quietly_main("onboard", WORK, "new.parquet")

    def watch(line: Any, done: int, total: int) -> None:
        if line["work"] == "finetune":
            raise Killed

    with contextlib.suppress(Killed):
        onboard(RunFolder(WORK), Path(table), again=again, watch=watch)


def ignore_progress(*_: Any) -> None:
    """Show no progress."""


def whole(command: str, *arguments: str) -> None:
    quietly_main(command, "small.toml", *arguments, f"out={WORK}")


def quietly_main(*arguments: str) -> None:
    """Run a command that must succeed."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([*arguments, "--quiet"]) == 0


ONBOARDING = ["onboard", WORK, "--resume"]
TUNED = ["finetune.personal_lr=0.1,0.01", "evaluate.every=0"]
STATES = [
    State(
        "finished",
        lambda: runner.finish(prepared("finetune.baseline=true")) and None,
        ["run", "--resume", WORK],
    ),
    State("pretraining", lambda: stopped(2), ["run", "--resume", WORK], is_finished=False),
    State("personalizing", lambda: stopped(9), ["run", "--resume", WORK], is_finished=False),
    State("in a commit", lambda: in_commit(3), ["run", "--resume", WORK], is_finished=False),
    State("patient", lambda: stopped(14, *PATIENT), ["run", "--resume", WORK], is_finished=False),
    State("comparison", lambda: whole("compare"), ["compare", "--resume", WORK]),
    State("half compared", half_compared, ["compare", "--resume", WORK], is_finished=False),
    State("search", lambda: whole("tune", *TUNED), ["tune", "--resume", WORK], has_report=False),
    State("onboarded", onboarded, ONBOARDING),
    State(
        "half onboarded",
        lambda: half_onboarded("new.parquet"),
        ONBOARDING,
        is_finished=False,
        written="onboarded/1",
    ),
    State(
        "half again",
        lambda: half_onboarded("again.parquet", again=True),
        ONBOARDING,
        is_finished=False,
        written="onboarded/2",
    ),
]
DAMAGES = ("flip first", "flip", "flip last", "cut", "empty", "delete", "append")
NOT_READ = re.compile(
    r"report\.html|(figures|tables|tensorboard)/|\.lock$|tuned\.toml$|trials\.(md|csv|tex|html)$"
)
"""Files that Partita writes and never reads again, or that a user may edit."""


def damage(path: Path, kind: str, chance: random.Random) -> None:
    """Damage a file."""
    content = bytearray(path.read_bytes())
    places = {"flip first": 0, "flip": chance.randrange(max(1, len(content))), "flip last": len(content) - 1}
    if kind in places and content:
        content[places[kind]] ^= 1 << chance.randrange(8)
    path.write_bytes(content[: len(content) // 2] if kind == "cut" else content)
    if kind == "empty":
        path.write_bytes(b"")
    if kind == "append":
        path.write_bytes(bytes(content) + b'{"round": 1}\n')
    if kind == "delete":
        path.unlink()


def results(folder: Path) -> dict[str, Any]:
    """Return what the promise of the same bits covers, of all runs in a folder."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        is_result = re.search(
            r"(\.safetensors|devices\.parquet|summary|costs|derived|onboarding|trial.*\.json|skipped.*)", name
        )
        if not path.is_file() or path.name == "commit.json" or not (is_result or "rounds" in name):
            continue
        content: Any = path.read_bytes()
        if path.name == "rounds.jsonl":
            lines = [json.loads(line) for line in content.splitlines()]
            content = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
        found[name] = content
    return found


def pages(folder: Path) -> dict[str, bytes]:
    """Return the report in a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.name == "report.html" or path.parent.name == "tables"
    }


def models(folder: Path) -> dict[Any, Any]:
    """Return what Python reads of a finished run: measurements, rounds and the models of every device."""
    result = partita.open(folder)
    devices = dict.fromkeys(result.devices["device"].to_pylist())
    state = {
        (device, which, name): tensor.tolist()
        for device in devices
        for which in ("personal", "served")
        for name, tensor in result.model(device, which).state_dict().items()
    }
    return {
        **state,
        "devices": result.devices.to_pylist(),
        "rounds": result.rounds,
        "summary": result.summary,
    }


@dataclass(frozen=True)
class Outcome:
    """The end of an action: its exit code, what it printed as errors, and its result."""

    code: int
    errors: str
    result: Any = None


def act(state: State, action: str) -> Outcome:
    """Do something with the folder, and return how it ended."""
    errors, folder = io.StringIO(), Path(WORK)
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            if action == "open":
                return Outcome(0, "", models(folder))
            commands = {"resume": [*state.resume, "--quiet"], "report": ["report", WORK, "--quiet"]}
            code = main(commands.get(action, ["check", WORK]))
        except ConfigError as error:
            return Outcome(2, f"partita: {error}\n")
        except BaseException:
            return Outcome(-1, traceback.format_exc())
    find = {"resume": lambda _: results(folder / state.written), "report": pages}.get(action, lambda _: None)
    return Outcome(code, errors.getvalue(), find(folder) if code == 0 else None)


def verdict(outcome: Outcome, expected: Outcome, *, is_check: bool) -> str:
    """Return how a case ended."""
    if outcome.code == -1 or "Traceback" in outcome.errors:
        return "traceback"
    if is_check:
        return {0: "not noticed", 1: "noticed"}.get(outcome.code, "refused")
    if outcome.code == 0 and outcome.result == expected.result:
        return "same"
    if outcome.code == 0 or len(outcome.errors.strip().splitlines()) != 1:
        return "SILENT"
    return "refused"


class Matrix:
    """All cases, in a folder of its own, which is the current one."""

    def __init__(self, names: list[str] | None = None) -> None:
        pq.write_table(pa.Table.from_pylist(rows()), "t.parquet")
        new = rows("new {}", count=2)
        pq.write_table(pa.Table.from_pylist(new), "new.parquet")
        again = [{**row, "label": 0} for row in rows(count=2) + new]
        pq.write_table(pa.Table.from_pylist(again), "again.parquet")
        Path("small.toml").write_text(CONFIG)
        self.states = [state for state in STATES if names is None or state.name in names]
        self._expected: dict[tuple[str, str], Outcome] = {}
        for state in self.states:
            shutil.rmtree(WORK, ignore_errors=True)
            state.make()
            Path(WORK).rename(self._base(state))
            for action in self._actions(state):
                self._copy(state)
                self._expected[state.name, action] = outcome = act(state, action)
                assert outcome.code == 0, (state.name, action, outcome)

    def cases(self) -> list[Case]:
        """Return every case."""
        return [
            Case(state, str(path.relative_to(self._base(state))), kind, action)
            for state in self.states
            for path in sorted(self._base(state).rglob("*"))
            if path.is_file() and not NOT_READ.search(str(path.relative_to(self._base(state))))
            for kind in DAMAGES
            for action in self._actions(state)
        ]

    def run(self, case: Case, chance: random.Random) -> tuple[str, Outcome]:
        """Damage a file, act, and return how that ended."""
        self._copy(case.state)
        damage(Path(WORK, case.file), case.damage, chance)
        outcome = act(case.state, case.action)
        expected = self._expected[case.state.name, case.action]
        return verdict(outcome, expected, is_check=case.action == "check"), outcome

    @staticmethod
    def _actions(state: State) -> Iterator[str]:
        yield "resume"
        yield from ["report"] if state.is_finished and state.has_report else []
        yield from ["open"] if state.name in ("finished", "onboarded") else []
        yield "check"

    @staticmethod
    def _base(state: State) -> Path:
        return Path("base " + state.name)

    def _copy(self, state: State) -> None:
        shutil.rmtree(WORK, ignore_errors=True)
        shutil.copytree(self._base(state), WORK)


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """Do not wait for the disk, and draw no figures, in a new current folder."""
    before = Path.cwd()
    with (
        tempfile.TemporaryDirectory() as place,
        mock.patch.object(os, "fsync", return_value=None),
        mock.patch("partita.report.write.write_figures", return_value=None),
    ):
        os.chdir(place)
        try:
            yield
        finally:
            os.chdir(before)


def report(counts: Counter[tuple[str, str, str]]) -> str:
    """Return a table of the verdicts by state and action."""
    verdicts = sorted({verdict for _, _, verdict in counts})
    lines = [f"{'state':14} {'action':8}" + "".join(f"{name:>13}" for name in verdicts)]
    for state, action in dict.fromkeys((state, action) for state, action, _ in counts):
        numbers = [counts[state, action, name] for name in verdicts]
        lines.append(f"{state:14} {action:8}" + "".join(f"{number:13}" for number in numbers))
    total = [sum(n for (_, _, v), n in counts.items() if v == name) for name in verdicts]
    return "\n".join([*lines, f"{'all':23}" + "".join(f"{number:13}" for number in total)])


def by_hand() -> int:
    """Run all cases, or a sample, print how they ended, and return 1 if one was silent or a traceback."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=0, help="the number of cases; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--states", nargs="*", help="some of the states alone")
    options = parser.parse_args()
    counts: Counter[tuple[str, str, str]] = Counter()
    wrong = 0
    with quickly():
        matrix, chance = Matrix(options.states), random.Random(options.seed)
        cases = matrix.cases()
        print(len(cases), "cases", flush=True)
        for case in chance.sample(cases, options.sample) if options.sample else cases:
            ended, outcome = matrix.run(case, chance)
            counts[case.state.name, case.action, ended] += 1
            if ended in ("SILENT", "traceback", "not noticed"):
                wrong += ended != "not noticed"
                print(
                    ended,
                    case.state.name,
                    case.action,
                    case.file,
                    case.damage,
                    outcome.errors[-600:],
                    flush=True,
                )
    print(report(counts))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(by_hand())
