"""Facts about the machine that a benchmark ran on, and the rate at which one core multiplies matrices."""

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

SIZE = 1024


def facts() -> dict[str, Any]:
    """Return the facts that results depend on."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gemm": gemm_rate(),
    }


def gemm_rate(repeats: int = 50) -> float:
    """Return the FLOP/s of a float32 product of two matrices on one core: the best of some repeats."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        left, right = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)
        return 2 * SIZE**3 / min(_seconds(left, right) for _ in range(repeats))
    finally:
        torch.set_num_threads(threads)


def _seconds(left: torch.Tensor, right: torch.Tensor) -> float:
    began = time.perf_counter()
    torch.mm(left, right)
    return time.perf_counter() - began


def _cpu() -> str:
    """Return the name of the processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
