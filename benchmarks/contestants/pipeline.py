"""A short run of a config, again for each turn: the seconds of its personalization and of its evaluations.

It is run with this version of Partita and with an older one, so it uses only what both have. Each run is in a
new process, as it is for a user: nothing is left of the run before, such as compiled kernels. The first round
is left out: it includes all that happens once, such as building models. Before the first turn, a run counts
floating-point operations, of visits in its own process.
"""

import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from partita.config.reading import read_config
from partita.studies import run as runner
from turns import Turns


class Meter:
    """What a run's rounds take of something that grows, by work."""

    def __init__(self, reading: Callable[[], float]) -> None:
        self.taken: defaultdict[str, float] = defaultdict(float)
        self._reading = reading
        self._last = 0.0

    def watch(self, line: Mapping[str, Any], done: int, total: int) -> None:
        """Add what was taken since the last round to the work of this one."""
        if done > 1:
            self.taken[line["work"]] += self._reading() - self._last
        self._last = self._reading()


def run(config: Path, overrides: list[str], reading: Callable[[], float]) -> dict[str, float]:
    """Run a config in a temporary folder, and return what its rounds take, by work."""
    meter = Meter(reading)
    with tempfile.TemporaryDirectory() as folder:
        settings = read_config(config, [*overrides, f"out={folder}/run"])
        runner.finish(runner.prepare(settings, config.parent), meter.watch)
    return dict(meter.taken)


def count(config: Path, overrides: list[str]) -> dict[str, float]:
    """Return the floating-point operations of a run, by work."""
    with FlopCounterMode(display=False) as counter:
        return run(config, overrides, counter.get_total_flops)


def in_new_process(function: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return what a function returns in a process that is forked for it."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        with os.fdopen(writer, "w") as pipe:
            json.dump(function(), pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return json.loads(result)


def main() -> None:
    """Serve runs."""
    torch.set_num_threads(1)
    turns = Turns()
    config, overrides = Path(sys.argv[1]), sys.argv[2:]
    turns.ready(flops=in_new_process(lambda: count(config, overrides)))
    while turns.begin():
        turns.end(work=in_new_process(lambda: run(config, overrides, time.perf_counter)))


if __name__ == "__main__":
    main()
