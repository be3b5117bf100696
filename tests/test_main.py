"""The process of the command line: Ctrl-C at any moment is one line, and never a traceback."""

import subprocess
import sys

import pytest

from marks import slow_but

COMMON = """
import os, signal, sys
from partita import __main__ as started
import partita.cli
def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
MOMENTS = {
    "before the arguments are read": "partita.cli.parse = interrupt",
    "while torch is imported": "partita.cli.import_module = interrupt",
    "in a command": "partita.cli.run.run = interrupt",
    "after a command": "partita.cli.run.run = lambda _: 0; partita.cli.sys = "
    "type('Sys', (), {'stdout': type('Out', (), {'flush': interrupt})(), 'stderr': sys.stderr})",
}


def run(code: str, closed: str = "") -> subprocess.CompletedProcess[str]:
    whole = f"{COMMON}\n{code}\nsys.argv = ['partita', 'run']\nsys.exit(started.run())"
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, whole]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("moment", slow_but(MOMENTS, "in a command", "before the arguments are read"))
def test_ctrl_c_ends_the_process_in_one_line(moment: str) -> None:
    if moment == "in a command":
        code = f"partita.cli.import_module = lambda _: None\n{MOMENTS[moment]}"
    else:
        code = MOMENTS[moment]

    ended = run(code)

    assert ended.stderr == "partita: Interrupted.\n"
    assert ended.returncode == 130


def test_ctrl_c_stays_ignored_where_it_was() -> None:
    code = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
partita.cli.import_module = interrupt
partita.cli.run.run = lambda _: interrupt() or 0
"""

    ended = run(code)

    assert (ended.returncode, ended.stderr) == (0, "")


def test_no_file_takes_the_place_of_a_closed_stream() -> None:
    opened = "partita.cli.run.run = lambda _: print('x') or int(os.open(os.devnull, os.O_RDONLY) < 3)"

    ended = run(f"partita.cli.import_module = lambda _: None\n{opened}", closed=">&- <&-")

    assert ended.stderr == ""
    assert ended.returncode == 0
