"""Runs on QMNIST: two workers against one, and this version against an older one.

PARTITA_DATA is the folder with `qmnist_writers.parquet`. BEFORE is a checkout of an older version of this
repository; with LONG=1, both versions also run a whole comparison, which takes most of an hour. Where one of
them is missing, its rows are skipped.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from contest import ROOT, Side, interleave
from row import Row

CONFIG, COMPARISON = (ROOT / "experiments" / kind / "qmnist.toml" for kind in ("small", "compare"))
SHORT = [
    *("pretrain.rounds=1", "personalize.rounds=10", "finetune.epochs=0", "finetune.baseline=false"),
    *("evaluate.devices=100", "evaluate.every=0"),
]
"""The config, shortened: a round of pretraining, which is left out, personalization and two evaluations."""
REPEATS = 5
COMMAND = "import sys; from partita.cli import main; sys.exit(main())"
"""The command `partita`, of whatever version is on the path."""
TITLES = {"update": "10 personalization rounds on qmnist", "evaluate": "2 evaluations of 100 qmnist devices"}

Replies = Mapping[str, Sequence[Mapping[str, Any]]]
"""The facts of each side, and its replies; nothing if the row is skipped."""


def rows() -> Iterator[Row]:
    """Yield all rows."""
    yield from _two_workers()
    yield from _evaluation()
    yield from _comparison()


def _two_workers() -> Iterator[Row]:
    skipped = _missing_data()
    sides = [Side(f"workers={count}", "pipeline", _arguments(f"workers={count}")) for count in (2, 1)]
    replies = {} if skipped else interleave(sides, REPEATS)
    for work, title in TITLES.items():
        yield Row(
            workload=f"{title}, 2 workers",
            against="1 worker",
            goal="faster",
            target=1.8,
            ours=_least(replies, "workers=2", work),
            other=_least(replies, "workers=1", work),
            flops=_flops(replies, "workers=1", work),
            cores=2,
            skipped=skipped,
        )


def _evaluation() -> Iterator[Row]:
    skipped = _missing_data() or _missing_before()
    after = Side("after", "pipeline", _arguments("workers=1"))
    before = Side("before", "pipeline", _arguments(), path=(_before() / "src",))
    replies = {} if skipped else interleave([after, before], REPEATS)
    yield Row(
        workload=f"{TITLES['evaluate']}, 1 process",
        against="before",
        goal="faster",
        target=2.0,
        ours=_least(replies, "after", "evaluate"),
        other=_least(replies, "before", "evaluate"),
        flops=_flops(replies, "after", "evaluate"),
        skipped=skipped,
    )


def _comparison() -> Iterator[Row]:
    too_long = "" if os.environ.get("LONG") else "it takes long; `make bench LONG=1` includes it"
    skipped = _missing_data() or _missing_before() or too_long
    yield Row(
        workload="`partita compare experiments/compare/qmnist.toml seeds=1`, 2 workers",
        against="before, 1 process",
        goal="faster",
        target=2.2,
        ours=None if skipped else _compare(ROOT, "workers=2"),
        other=None if skipped else _compare(_before()),
        skipped=skipped,
    )


def _least(replies: Replies, side: str, work: str) -> float | None:
    return min(reply["work"][work] for reply in replies[side][1:]) if replies else None


def _flops(replies: Replies, side: str, work: str) -> float | None:
    return replies[side][0]["flops"][work] if replies else None


def _arguments(*overrides: str) -> list[str]:
    return [str(CONFIG), *SHORT, *overrides]


def _compare(checkout: Path, *overrides: str) -> float:
    """Return how long a version takes for the comparison."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["compare", str(COMPARISON), "seeds=1", *overrides, f"out={folder}/comparison"]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout / "src")}
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", COMMAND, *arguments], check=True, env=variables)
        return time.perf_counter() - began


def _missing_data() -> str:
    folder = os.environ.get("PARTITA_DATA")
    found = folder and (Path(folder) / "qmnist_writers.parquet").exists()
    return "" if found else "PARTITA_DATA has no `qmnist_writers.parquet`"


def _missing_before() -> str:
    return "" if _before().is_dir() else "BEFORE is not a checkout of an older version"


def _before() -> Path:
    """Return the checkout of the older version; a path that does not exist if none is given."""
    return Path(os.environ.get("BEFORE") or "/BEFORE is not given").resolve()
