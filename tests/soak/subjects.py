"""The commands that are disturbed, what a user does after that, and the results that must be the same."""

import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from damage import CONFIG, TUNED, pages, results, rows
from partita.report.figures import libraries
from soak.processes import Call, Ended, Place, forked, home
from tff_files import example, write_sqlite

OUT = "x"
"""The folder or file that a command writes."""
_OLD = ["run", "small.toml", "personalize.rounds=2", f"out={OUT}", "--quiet"]
Results = dict[str, Any]
"""Contents of files, by their names."""
_ADVICE = re.compile(r"`([^`]*)`")


@dataclass(frozen=True)
class Subject:
    """A command, and how it is continued."""

    name: str
    first: list[str]
    """Its arguments."""
    resume: list[str]
    """The arguments that a user tries first after a kill."""
    results: Callable[[Path], Results]
    """Returns the results in the working folder: they do not depend on what has happened."""
    before: list[list[str]]
    """Commands that make what the command needs."""
    workers: int | None = 1

    @property
    def title(self) -> str:
        return (
            self.name
            if self.workers is None
            else f"{self.name}, {self.workers} worker{'s'[: self.workers - 1]}"
        )


@dataclass(frozen=True)
class Undisturbed:
    """A command without a disturbance."""

    results: Results
    calls: Mapping[Call, int]
    seconds: float
    size: int
    """The bytes of all files after it, less those before."""


def _studied(folder: Path) -> Results:
    """Return the results of a run, a comparison or a search, with whether its last file is there.

    A kill may leave a checkpoint in a run that has just finished, which nothing reads again.
    """
    last = {name: (folder / OUT / name).exists() for name in ("report.html", "tuned.toml")}
    found = results(folder / OUT)
    return last | {name: content for name, content in found.items() if "checkpoint-" not in name}


def _table(folder: Path) -> Results:
    return {OUT: (folder / OUT).read_bytes()} if (folder / OUT).exists() else {}


def _report(folder: Path) -> Results:
    figures = {path.name: path.stat().st_size for path in (folder / OUT / "figures").glob("*.svg")}
    return pages(folder / OUT) | figures


def _study(command: str, *arguments: str, workers: int = 1) -> Subject:
    first = [command, "small.toml", *arguments, f"workers={workers}", f"out={OUT}", "--quiet"]
    return Subject(command, first, [command, "--resume", OUT, "--quiet"], _studied, [], workers)


def _onboard(workers: int) -> Subject:
    first, resume = ["onboard", OUT, "new.parquet", "--quiet"], ["onboard", OUT, "--resume", "--quiet"]
    return Subject(
        "onboard", first, resume, _studied, [[*_OLD[:2], f"workers={workers}", *_OLD[2:]]], workers
    )


def _import(kind: str, source: str, *settings: str) -> Subject:
    command = ["import", kind, source, OUT, *settings, "--quiet"]
    return Subject(f"import {kind}", command, command, _table, [], None)


_REPORT = ["report", OUT, "--quiet"]
SUBJECTS = [
    *(_study("run", workers=workers) for workers in (1, 2)),
    *(_study("compare", workers=workers) for workers in (1, 2)),
    *(_study("tune", *TUNED, workers=workers) for workers in (1, 2)),
    *(_onboard(workers) for workers in (1, 2)),
    _import("sort", "mixed.parquet"),
    _import("stackoverflow", "s.sqlite", "min_train_examples=1", "min_test_examples=1"),
    Subject("report", _REPORT, _REPORT, _report, [_OLD], None),
]


def write_inputs(folder: Path) -> None:
    """Write the files that commands read."""
    made = rows()
    pq.write_table(pa.Table.from_pylist(made), folder / "t.parquet")
    pq.write_table(pa.Table.from_pylist(made[::2] + made[1::2]), folder / "mixed.parquet", row_group_size=9)
    new = [{**row, "device": row["device"].replace("d", "new ")} for row in made[:24]]
    pq.write_table(pa.Table.from_pylist(new), folder / "new.parquet")
    (folder / "small.toml").write_text(CONFIG)
    records = [
        (split, f"{device:08}", example(tokens=[f"a question {number} of {device}".encode()]))
        for device in range(30)
        for split, count in (("train", 20), ("test", 5))
        for number in range(count)
    ]
    write_sqlite(folder / "s.sqlite", records)


class Bench:
    """A subject and its undisturbed results, in a place where it is disturbed again and again."""

    def __init__(self, subject: Subject, place: Place, bases: Path) -> None:
        self.subject, self.place = subject, place
        self._base = bases / subject.title
        self._empty()
        write_inputs(place.folder)
        shutil.copytree(charts(), place.folder / "cache" / "partita")
        os.environ["XDG_CACHE_HOME"] = str(place.folder / "cache")
        for command in subject.before:
            self.run(command)
        shutil.copytree(place.folder, self._base)
        self.run(subject.first)  # The figures of a report are drawn in the first one alone.
        self.reset()
        before = size_of(place.folder)
        ended = self.run(subject.first)
        found = subject.results(place.folder)
        self.expected = Undisturbed(found, ended.calls, ended.seconds, size_of(place.folder) - before)

    def run(self, command: list[str]) -> Ended:
        """Run a command that must succeed."""
        ended = self.place.run(command)
        if ended.code:
            raise AssertionError(f"`partita {shlex.join(command)}` failed: {ended}")
        return ended

    def calls(self, kinds: Call) -> int:
        """Return the number of calls of some kinds in an undisturbed command."""
        return sum(number for kind, number in self.expected.calls.items() if kind & kinds)

    def reset(self) -> None:
        """Make the place what it was before the command."""
        self._empty()
        shutil.copytree(self._base, self.place.folder, dirs_exist_ok=True)

    def _empty(self) -> None:
        self.place.folder.mkdir(exist_ok=True)
        for path in self.place.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    @property
    def is_done(self) -> bool:
        """Whether the results are there, and the same."""
        return not self.differences()

    def differences(self) -> list[str]:
        """Return the files that are not as without a disturbance."""
        found, expected = self.subject.results(self.place.folder), self.expected.results
        return [name for name in expected | found if found.get(name) != expected.get(name)]

    def advised(self, line: str) -> list[str]:
        """Return the command that an error message says to continue with, by default the same again."""
        found = [text for text in _ADVICE.findall(line) if text.startswith(("partita ", "--resume "))]
        if not found:
            return self.subject.first
        words = shlex.split(found[-1])
        return [*words[1:], "--quiet"] if words[0] == "partita" else [self.subject.name, *words, "--quiet"]


@cache
def charts() -> Path:
    """Return a folder with the script that draws the charts of pages: bundling it takes seconds."""
    os.environ["XDG_CACHE_HOME"] = str(home() / "charts")
    process = forked(lambda: len(libraries()) * 0)
    assert os.waitpid(process, 0)[1] == 0
    return home() / "charts" / "partita"


def size_of(folder: Path) -> int:
    """Return the bytes that the files in a folder take in pages of memory."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*") if path.is_file())
