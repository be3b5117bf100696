"""Contestants in processes of their own that take turns: A B A B ..., so that all meet the same machine.

`benchmarks/turns.py` is the other end of the pipes.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

HERE = Path(__file__).parent
ROOT = HERE.parent


@dataclass(frozen=True)
class Side:
    """A contestant: a script, the Python that runs it, and what its processes are given."""

    name: str
    script: str
    """The script's name in `benchmarks/contestants`."""
    arguments: Sequence[str] = ()
    python: Path = Path(sys.executable)
    path: Sequence[Path] = (ROOT / "src",)
    """Folders of packages, besides `benchmarks`."""
    processes: Sequence[Mapping[str, str]] = ({},)
    """Environment variables of each process that the side consists of."""


@dataclass
class Contestant:
    """The running processes of a side; leaving the context ends them."""

    side: Side
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    log: IO[str] = field(default_factory=lambda: tempfile.TemporaryFile("w+"))  # noqa: SIM115 - see `_end`
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The first process's reply when it was ready."""

    def __enter__(self) -> Self:
        try:
            self.started += [self._start(variables) for variables in self.side.processes]
            self.facts, *_ = [self._reply(process) for process in self.started]
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def turn(self) -> Mapping[str, Any]:
        """Let all processes do their work once, and return the reply of the slowest."""
        for process in self.started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return max((self._reply(process) for process in self.started), key=lambda reply: reply["seconds"])

    def _start(self, variables: Mapping[str, str]) -> subprocess.Popen[str]:
        script = HERE / "contestants" / f"{self.side.script}.py"
        path = os.pathsep.join(map(str, (HERE, *self.side.path)))
        return subprocess.Popen(
            [self.side.python, script, *self.side.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables},
            start_new_session=True,
        )

    def _reply(self, process: subprocess.Popen[str]) -> Mapping[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise RuntimeError(f"The contestant {self.side.name!r} ended:\n{self.log.read()[-4000:]}")
        return json.loads(line)

    def _end(self) -> None:
        """Let the processes end, and kill what is left of them and of all that they started."""
        for process in self.started:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
        for process in self.started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self.log.close()


def interleave(sides: Sequence[Side], repeats: int) -> dict[str, list[Mapping[str, Any]]]:
    """Let contestants take turns, and return each one's first facts, followed by its replies."""
    with ExitStack() as stack:
        contestants = [stack.enter_context(Contestant(side)) for side in sides]
        replies = {each.side.name: [each.facts] for each in contestants}
        for _ in range(repeats):
            for each in contestants:
                replies[each.side.name].append(each.turn())
    return replies
