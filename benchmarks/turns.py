"""A contestant's side of a contest: it does one round for each line that it reads, and replies with its time.

A contestant is a process that stays up: it sets itself up, says that it is ready, and waits for its turn.
Whatever it prints goes to standard error; only replies go to standard output.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from workload import Workload


class Turns:
    """Requests from standard input, and replies to what was standard output when this was made."""

    def __init__(self) -> None:
        self._replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._began = 0.0

    def ready(self, **facts: Any) -> None:
        """Say that the set-up is over."""
        self._reply(facts)

    def begin(self) -> bool:
        """Wait for the next turn and start the clock; return False if there is none."""
        if not sys.stdin.readline():
            return False
        self._began = time.perf_counter()
        return True

    def end(self, **facts: Any) -> None:
        """Stop the clock and reply."""
        self._reply({"seconds": time.perf_counter() - self._began, **facts})

    def _reply(self, facts: dict[str, Any]) -> None:
        print(json.dumps(facts), file=self._replies, flush=True)


def serve(
    turns: Turns, workload: Workload, run_round: Callable[[], Any], parameters: Callable[[], list[Tensor]]
) -> None:
    """Run the rounds that are checked, and then one for each turn.

    Args:
        turns: the requests.
        workload: the work of a round.
        run_round: runs one.
        parameters: returns the model's parameters after the rounds so far.
    """
    for _ in range(workload.checked_rounds):
        run_round()
    turns.ready(check=workload.check(parameters()))
    while turns.begin():
        run_round()
        turns.end()


def workload_of_arguments() -> tuple[Workload, int]:
    """Return the workload and the number of processes that the command line names; use one thread each."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--devices", type=int, default=50)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    return Workload(given.model, given.steps, given.devices), given.processes
