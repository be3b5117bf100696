"""A whole comparison on QMNIST from the command line: this version with two workers against an older one.

It takes most of an hour, so it runs only with LONG=1, and needs the folder and the checkout that
`benchmarks/qmnist.py` needs.
"""

import os
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
        against="before, 1 process",
        goal="faster",
        target=2.2,
        ours=None if skipped else compare(ROOT, "workers=2"),
        other=None if skipped else compare(before()),
        skipped=skipped,
    )


def compare(checkout: Path, *overrides: str) -> float:
    """Return how long a version takes for the comparison."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["compare", str(CONFIG), "seeds=1", *overrides, f"out={folder}/comparison"]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout / "src")}
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", COMMAND, *arguments], check=True, env=variables)
        return time.perf_counter() - began
