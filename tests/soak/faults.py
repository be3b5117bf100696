"""Faults of the system: a disk that is full, calls on files that fail. One line, and the same bits after it."""

import errno
import os
import random
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from soak.processes import CHANGES, Call, Ended, Fault
from soak.subjects import OUT, Bench, size_of

ERRORS: Mapping[int, Call] = {
    errno.EIO: CHANGES | Call.READ,
    errno.ENOSPC: Call.OPEN | Call.WRITE | Call.FSYNC | Call.RENAME | Call.MKDIR,
    errno.EROFS: Call.OPEN | Call.RENAME | Call.UNLINK | Call.MKDIR,
    errno.EACCES: Call.OPEN | Call.RENAME | Call.UNLINK | Call.MKDIR,
    errno.EMFILE: Call.OPEN | Call.READ,
}
"""The errors of a system, and the calls that may fail with each."""


@dataclass(frozen=True)
class Case:
    """A call that fails."""

    error: int
    number: int
    is_lasting: bool

    @property
    def fault(self) -> Fault:
        return Fault(ERRORS[self.error], self.number, self.error, self.is_lasting)


def cases(bench: Bench, count: int, chance: random.Random) -> list[Case]:
    """Return so many cases, spread evenly over the calls of a command: once, or from then on."""
    every = [
        Case(error, number, False)
        for error, kinds in ERRORS.items()
        for number in range(1, bench.calls(kinds) + 1)
    ]
    step = max(1.0, len(every) / count) if count else 1.0
    chosen = [every[int(place * step)] for place in range(int(len(every) / step))]
    return [Case(case.error, case.number, chance.random() < 0.5) for case in chosen]


def fail(bench: Bench, case: Case) -> tuple[str, str]:
    """Let a call fail, continue without the fault, and return the verdict, and details."""
    bench.reset()
    ended = bench.place.run(bench.subject.first, case.fault)
    kind = f"{errno.errorcode[case.error]}{' from then on' if case.is_lasting else ''} at call {case.number}"
    verdict, details = judged(bench, ended)
    return verdict if ended.file else "not reached", f"{kind}, `{ended.file}`\n{details}"


def judged(bench: Bench, ended: Ended) -> tuple[str, str]:
    """Return the verdict on a command after a fault that is over, and on what its message says to do."""
    said = "\n".join([f"exit code {ended.code}", *ended.lines])
    if ended.has_traceback:
        return "TRACEBACK", said
    if ended.code == 0:
        return "same bits at once" if bench.is_done else "SILENT", f"{said} {bench.differences()}"
    if not ended.lines or not ended.is_plain:
        return "OTHER MESSAGE" if ended.lines else "NO MESSAGE", said
    if "is complete" in ended.lines[-1]:
        return "same bits, not confirmed" if bench.is_done else "OTHER BITS", f"{said} {bench.differences()}"
    command = bench.advised(ended.lines[-1])
    again = bench.place.run(command)
    if again.code != 0:
        return "DEAD END", "\n".join([said, shlex.join(command), *again.lines])
    return "same bits, continued" if bench.is_done else "OTHER BITS", f"{said} {bench.differences()}"


class Disk:
    """A small disk in memory, to be filled."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "soak", folder], check=True)

    def close(self) -> None:
        subprocess.run(["umount", self.folder], check=True)

    def fill(self, free: int) -> None:
        """Leave only so many bytes, in pages."""
        state = os.statvfs(self.folder)
        size = max(0, state.f_bavail * state.f_frsize - free)
        file = os.open(self.folder / "ballast", os.O_WRONLY | os.O_CREAT)
        os.posix_fallocate(file, 0, max(1, size))
        os.close(file)

    def make_space(self) -> None:
        (self.folder / "ballast").unlink()


def fill(bench: Bench, disk: Disk, count: int, chance: random.Random) -> Iterator[tuple[str, str]]:
    """Run a command on a disk that is full after a random number of bytes; yield verdicts, and details."""
    for _ in range(count):
        bench.reset()
        # A report replaces files by others of the same size.
        size = bench.expected.size or size_of(bench.place.folder / OUT)
        free = chance.randrange(size)
        disk.fill(free)
        ended = bench.place.run(bench.subject.first)
        disk.make_space()
        verdict, details = judged(bench, ended)
        yield verdict, f"{free} bytes free, the command writes {size}\n{details}"
