"""Commands of Partita in processes of their own, which are killed or whose calls fail at a chosen moment.

Processes are forked from one that has imported everything, which saves seconds for each. They begin with
`shim.c`, a library that is loaded before libc and makes calls fail; the processes that they fork share its
counter of calls.
"""

import ctypes
import enum
import os
import shlex
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

LIMIT = 300.0
"""Seconds after which a command hangs."""


class Call(enum.IntFlag):
    """Kinds of calls, as in `shim.c`."""

    OPEN = 1
    WRITE = 2
    FSYNC = 4
    RENAME = 8
    UNLINK = 16
    MKDIR = 32
    READ = 64


CHANGES = Call.OPEN | Call.WRITE | Call.FSYNC | Call.RENAME | Call.UNLINK | Call.MKDIR


class Control(ctypes.Structure):
    """The memory that this process shares with `shim.c` in all others."""

    _fields_ = [
        ("is_on", ctypes.c_int),
        ("kinds", ctypes.c_int),
        ("error", ctypes.c_int),
        ("is_lasting", ctypes.c_int),
        ("victim", ctypes.c_int),
        ("target", ctypes.c_long),
        ("calls", ctypes.c_long),
        ("all", ctypes.c_long * len(Call)),
        ("folder", ctypes.c_char * 256),
        ("path", ctypes.c_char * 512),
    ]


@dataclass(frozen=True)
class Fault:
    """A fault at one call that touches a file of the working folder."""

    calls: Call = CHANGES
    """The calls that count."""
    number: int = 0
    """The number of the call among them, from 1; 0: there is no fault, calls are counted."""
    error: int = 0
    """The error of the call; 0: the command is killed before it."""
    is_lasting: bool = False
    """Whether all later ones fail, too."""


@dataclass(frozen=True)
class Ended:
    """The end of a command."""

    code: int
    """Its exit code; -9 where it was killed."""
    lines: tuple[str, ...]
    """The lines that it has printed as errors."""
    calls: Mapping[Call, int]
    """How many calls of each kind there were."""
    file: str
    """The file of the call that failed, empty where none did."""
    seconds: float

    @property
    def has_traceback(self) -> bool:
        return any(line.startswith("Traceback") for line in self.lines)

    @property
    def is_plain(self) -> bool:
        """Whether it has printed messages of one line alone: warnings, if any, and one about its end."""
        return all(line.startswith("partita: ") for line in self.lines)

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL


IS_PREPARED = "SOAK_HOME" in os.environ
"""Whether this process has `shim.c`."""


def with_shim(folder: Path) -> int:
    """Run this program with `shim.c`, in a mount namespace of its own, and return its exit code."""
    library, source = folder / "shim.so", Path(__file__).parent / "shim.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    own = {"LD_PRELOAD": str(library), "SOAK_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, *sys.orig_argv[1:]]
    return subprocess.run(command, check=False, env=os.environ | own).returncode


def home() -> Path:
    """Return the folder of this soak test."""
    return Path(os.environ["SOAK_HOME"])


def control() -> Control:
    """Return the memory of `shim.c` in this process."""
    library = ctypes.CDLL(None)
    library.soak_control.restype = ctypes.POINTER(Control)
    return library.soak_control().contents


@dataclass(frozen=True)
class Place:
    """A folder in which commands run, one after the other."""

    folder: Path

    def run(self, arguments: list[str], fault: Fault | None = None, *, seconds: float = LIMIT) -> Ended:
        """Run a command to its end, with a fault, or until it is killed after some seconds."""
        shared, begin = control(), time.monotonic()
        _arm(shared, fault or Fault(), self.folder)
        process = self._started(arguments, shared)
        code = _waited(process, begin + seconds)
        if code is None:
            os.kill(process, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            if seconds == LIMIT:
                raise TimeoutError(f"`{shlex.join(arguments)}` hangs.")
        took = time.monotonic() - begin
        _wait_for_workers(process)
        shared.is_on = 0
        calls = dict(zip(Call, shared.all, strict=True))
        errors = _stream(2).read_text(errors="replace").splitlines()
        return Ended(code, tuple(errors), calls, shared.path.decode(), took)

    def start(self, arguments: list[str]) -> int:
        """Start a command without a fault and return its process, to be ended with `os.waitpid`."""
        shared = control()
        _arm(shared, Fault(), self.folder)
        return self._started(arguments, shared)

    def _started(self, arguments: list[str], shared: Control) -> int:
        def main() -> int:
            shared.victim = os.getpid()
            return self._main(arguments)

        return forked(main)

    def _main(self, arguments: list[str]) -> int:
        from partita.__main__ import run

        os.chdir(self.folder)
        for number in (1, 2):
            file = os.open(_stream(number), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, number)
        sys.argv = ["partita", *arguments]
        return run()


def _stream(number: int) -> Path:
    """Return the file that an output stream of a command is written to."""
    return home() / f"stream-{number}"


def _arm(shared: Control, fault: Fault, folder: Path) -> None:
    shared.is_on, shared.calls, shared.path = 0, 0, b""
    shared.all = type(shared.all)()
    shared.folder, shared.target = f"{folder}/".encode(), fault.number
    shared.error, shared.is_lasting = fault.error, fault.is_lasting
    shared.kinds, shared.is_on = fault.calls, 1


def forked(main: Callable[[], int]) -> int:
    """Call a function in a new process, which ends with the exit code that it returns; return the process."""
    sys.stdout.flush()
    if process := os.fork():
        return process
    code = 1
    try:
        os.setsid()
        code = main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _waited(process: int, until: float) -> int | None:
    """Return the exit code of a process, None where it has none in time."""
    while time.monotonic() < until:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def _wait_for_workers(leader: int) -> None:
    """Wait until all processes of a session are gone: whatever ends a command ends its workers."""
    deadline = time.monotonic() + 30
    while session(leader):
        if time.monotonic() > deadline:
            raise TimeoutError("Processes of a command that has ended are still running.")
        time.sleep(0.002)


def session(leader: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, own = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(own) == leader and state != "Z":
            found.append(int(folder.name))
    return found
