"""Settings of the processes that visit devices."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from partita.device.settings import Computing

_MAX_WORKERS = 1000
"""The maximum number of worker processes on one machine."""
_MAX_TIMEOUT = 1_000_000
"""The maximum time limit of a visit in seconds, 11 days; no system call waits much longer."""


@dataclass(frozen=True, kw_only=True)
class Execution(Computing):
    """How visits are carried out; the results do not depend on the number of workers."""

    workers: int = 0
    """Number of processes that visit devices, or that run the runs of a study; 1: all in one process;
    0: one for each core, or for each GPU where `accelerator` is one."""
    timeout: float = 0.0
    """Seconds that a visit in a worker process may take, after which the worker is replaced; 0: no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.workers) is not int:
            raise ValueError(f"`workers` must be a whole number, got {self.workers!r}.")
        if not 0 <= self.workers <= _MAX_WORKERS:
            most = f", at most {_MAX_WORKERS}" if self.workers > 0 else ""
            raise ValueError(f"`workers` must be 0 (one for each core) or above{most}, got {self.workers}.")
        if not 0 <= self.timeout <= _MAX_TIMEOUT:
            most = f", at most {_MAX_TIMEOUT:,}" if _MAX_TIMEOUT < self.timeout < math.inf else ""
            raise ValueError(
                f"`timeout` must be a finite number, 0 (no limit) or above{most}, got {self.timeout!r}."
            )

        if self.workers == 1 and self.timeout:
            raise ValueError(
                "`timeout` needs worker processes, since a visit in this process cannot be ended: set "
                "`workers` to 0 (one for each core) or to 2 or more, got 1."
            )

    @property
    def processes(self) -> int:
        """The number of workers, with 0 resolved to the GPUs, or to the cores that this process may use."""
        if self.workers:
            return self.workers
        from partita.device.accelerators import accelerators_named

        found = accelerators_named(self.accelerator)
        return usable_cores() if found[0].type == "cpu" else len(found)

    @property
    def uses_workers(self) -> bool:
        """Whether devices are visited by worker processes: all by one, where a visit has a time limit."""
        return self.processes > 1 or self.timeout > 0


def usable_cores() -> int:
    """Return the number of cores that this process may use, with the limit of its container."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # No cgroup of version 2, or no limit, which is the word `max`.
        return cores


SERIAL = Execution(workers=1)
"""All visits in this process, one after the other."""
