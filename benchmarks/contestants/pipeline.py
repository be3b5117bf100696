"""A short run of a config, again for each turn: the seconds of its personalization and of its evaluations.

It is run with this version of Partita and with an older one, so it uses only what both have. The first round
is left out: it includes all that happens once, such as building models.
"""

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from partita.config.reading import read_config
from partita.studies import run as runner
from turns import Turns


class Stopwatch:
    """The seconds of a run's rounds, by work."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._last = 0.0

    def watch(self, line: Mapping[str, Any], done: int, total: int) -> None:
        """Add the time since the last round to the work of this one."""
        now = time.perf_counter()
        if done > 1:
            self.seconds[line["work"]] += now - self._last
        self._last = time.perf_counter()


def run(config: Path, overrides: list[str]) -> dict[str, float]:
    """Run a config in a temporary folder, and return the seconds by work."""
    stopwatch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        settings = read_config(config, [*overrides, f"out={folder}/run"])
        runner.finish(runner.prepare(settings, config.parent), stopwatch.watch)
    return dict(stopwatch.seconds)


def main() -> None:
    """Serve runs."""
    torch.set_num_threads(1)
    turns = Turns()
    config, *overrides = sys.argv[1:]
    turns.ready()
    while turns.begin():
        turns.end(work=run(Path(config), overrides))


if __name__ == "__main__":
    main()
