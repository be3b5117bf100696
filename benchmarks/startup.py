"""The time until a command answers: `partita --help`, and `partita run` up to its first round.

    python benchmarks/startup.py

Each is the minimum of several starts, files being in the system's cache.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from row import Row

STARTS = 5
PARTITA = [sys.executable, "-c", "import sys; from partita.cli import main; sys.exit(main())"]


def rows() -> Iterator[Row]:
    """Time the two commands."""
    yield Row(
        workload="`partita --help`, from start to end",
        goal="under",
        target=0.3,
        ours=min(_seconds_of_help() for _ in range(STARTS)),
    )
    with tempfile.TemporaryDirectory() as folder:
        yield Row(
            workload="`partita run`, the quickstart, from start to the end of the first round",
            goal="under",
            target=4,
            ours=min(_seconds_to_a_round(Path(folder) / str(number)) for number in range(STARTS)),
        )


def _seconds_of_help() -> float:
    begin = time.perf_counter()
    subprocess.run([*PARTITA, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def _seconds_to_a_round(out: Path) -> float:
    """Return the time until the first round is printed; the run is ended then."""
    begin = time.perf_counter()
    command = [*PARTITA, "run", "--json", f"out={out}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - begin
        process.kill()
    assert b'"round": 0' in line, line
    return seconds


if __name__ == "__main__":
    for row in rows():
        print(row)
