"""A whole comparison on QMNIST from the command line: this version with two workers against an older one.

It takes most of an hour, so it runs only with LONG=1, and needs the folder and the checkout that
`benchmarks/qmnist.py` needs. So long, other programs may come between: of the older version, which is one
process with one thread, its processor time counts, which is never more than its time by the clock.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from contest import ROOT
from qmnist import before, missing_before, missing_data
from row import Row

CONFIG = ROOT / "experiments" / "compare" / "qmnist.toml"
COMMAND = "import sys; from partita.cli import main; sys.exit(main())"
"""The command `partita`, of whatever version is on the path."""


def rows() -> Iterator[Row]:
    """Yield the one row."""
    too_long = "" if os.environ.get("LONG") else "it takes long; `make bench LONG=1` includes it"
    skipped = missing_data() or missing_before() or too_long
    yield Row(
        workload="`partita compare experiments/compare/qmnist.toml seeds=1`, 2 workers",
        against="before, 1 process, its processor time",
        goal="faster",
        target=2.2,
        ours=None if skipped else compare(ROOT, "workers=2")[0],
        other=None if skipped else compare(before())[1],
        skipped=skipped,
    )


def compare(checkout: Path, *overrides: str) -> tuple[float, float]:
    """Return how long a version takes for the comparison, by the clock and in processor time."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["compare", str(CONFIG), "seeds=1", *overrides, f"out={folder}/comparison"]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout / "src")}
        began, busy = time.perf_counter(), _processor_time()
        subprocess.run([sys.executable, "-c", COMMAND, *arguments], check=True, env=variables)
        return time.perf_counter() - began, _processor_time() - busy


def _processor_time() -> float:
    """Return the processor time of the child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
