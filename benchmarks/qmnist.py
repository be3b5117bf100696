"""Runs on QMNIST: two workers against one, and this version against an older one.

PARTITA_DATA is the folder with `qmnist_writers.parquet`. BEFORE is a checkout of an older version of this
repository. Where one of them is missing, its rows are skipped.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from contest import ROOT, Side, interleave
from row import Row

CONFIG = ROOT / "experiments" / "small" / "qmnist.toml"
SHORT = [
    *("pretrain.rounds=1", "personalize.rounds=10", "finetune.epochs=0", "finetune.baseline=false"),
    *("evaluate.devices=100", "evaluate.every=0"),
]
"""The config, shortened: a round of pretraining, which is left out, personalization and two evaluations."""
REPEATS = 5
TITLES = {"update": "10 personalization rounds on qmnist", "evaluate": "2 evaluations of 100 qmnist devices"}

Replies = Mapping[str, Sequence[Mapping[str, Any]]]
"""The facts of each side, and its replies; nothing if the row is skipped."""


def rows() -> Iterator[Row]:
    """Yield all rows."""
    yield from _two_workers()
    yield from _evaluation()


def _two_workers() -> Iterator[Row]:
    skipped = missing_data()
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
    skipped = missing_data() or missing_before()
    after = Side("after", "pipeline", _arguments("workers=1"))
    older = Side("before", "pipeline", _arguments(), path=(before() / "src",))
    replies = {} if skipped else interleave([after, older], REPEATS)
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


def _least(replies: Replies, side: str, work: str) -> float | None:
    return min(reply["work"][work] for reply in replies[side][1:]) if replies else None


def _flops(replies: Replies, side: str, work: str) -> float | None:
    return replies[side][0]["flops"][work] if replies else None


def _arguments(*overrides: str) -> list[str]:
    return [str(CONFIG), *SHORT, *overrides]


def missing_data() -> str:
    """Return why there is no data; nothing if there is."""
    folder = os.environ.get("PARTITA_DATA")
    found = folder and (Path(folder) / "qmnist_writers.parquet").exists()
    return "" if found else "PARTITA_DATA has no `qmnist_writers.parquet`"


def missing_before() -> str:
    """Return why there is no older version; nothing if there is one."""
    return "" if before().is_dir() else "BEFORE is not a checkout of an older version"


def before() -> Path:
    """Return the checkout of the older version; a path that does not exist if none is given."""
    return Path(os.environ.get("BEFORE") or "/BEFORE is not given").resolve()
