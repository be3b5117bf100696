"""Bare loops over the devices of a round: the least time that any framework can take on this machine.

    python benchmarks/limits.py

Each line adds one thing to the loop before it: steps alone, then a copy of u into the model before each
visit, then a mean of the changes, in float32 or exact. With two processes, each has half of the devices, and
they share nothing: no messages, no common mean. Minimum of several turns, one thread per process. Images are
in channels-last memory format, as in visits.
"""

import multiprocessing
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from contestants.plain_loop import step
from partita.device.memory_format import channels_last
from partita.mean import WeightedMean
from partita.tasks.process import prepare_process
from workload import EXAMPLES, Batch, Workload

Loop = Callable[[Sequence[Batch]], None]
"""Visits devices, one after the other, given their batches."""
CASES = ((Workload("linear"), 40), (Workload("cnn"), 12))
"""Workloads, each with the number of turns."""


def loops(workload: Workload) -> dict[str, Loop]:
    """Return the loops by name; all of them use one model."""
    model = workload.make_model()
    named = dict(model.named_parameters())
    now, shared = list(named.values()), {name: each.detach().clone() for name, each in named.items()}
    total = {name: torch.zeros_like(u) for name, u in shared.items()}
    exact = WeightedMean(shared)

    def add_float() -> None:
        for name, parameter in named.items():
            total[name].add_(parameter - shared[name], alpha=EXAMPLES)

    def loop(add: Callable[[], None] | None, *, copies: bool = True) -> Loop:
        @torch.no_grad()
        def run(data: Sequence[Batch]) -> None:
            for batch in data:
                if copies:
                    load(named, shared)
                step(model, now, batch)
                if add is not None:
                    add()

        return run

    return {
        "steps alone": loop(None, copies=False),
        "and u copied": loop(None),
        "and a float mean": loop(add_float),
        "and the exact mean instead": loop(lambda: exact.add_after("device", named, EXAMPLES)),
    }


def load(named: dict[str, torch.nn.Parameter], shared: dict[str, Tensor]) -> None:
    """Copy u into the model, in place."""
    for name, parameter in named.items():
        parameter.copy_(shared[name])


def fastest(workload: Workload, turns: int, *, processes: int) -> dict[str, float]:
    """Return the seconds of each loop over all devices, which processes share: of several turns the least."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(processes, timeout=600)  # So that none waits for ever for one that has ended.
    names = list(loops(workload))
    seconds = context.Array("d", processes * turns * len(names), lock=False)

    def work(number: int) -> None:
        torch.set_num_threads(1)
        prepare_process()
        own, data = loops(workload), workload.make_data()[number::processes]
        data = [(channels_last(images), labels) for images, labels in data]
        for turn in range(turns):
            for place, run in enumerate(own.values()):
                barrier.wait()
                began = time.perf_counter()
                run(data)
                seconds[(number * turns + turn) * len(names) + place] = time.perf_counter() - began

    started = [context.Process(target=work, args=(number,)) for number in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    if any(process.exitcode for process in started):
        raise RuntimeError(f"A process of the loops of {workload.model} has ended early.")
    taken = torch.tensor(list(seconds), dtype=torch.float64).view(processes, turns, len(names))
    return dict(zip(names, taken.amax(0).amin(0).tolist(), strict=True))


def main() -> None:
    """Print the loops in one process and in two."""
    torch.set_num_threads(1)
    for workload, turns in CASES:
        one, two = (fastest(workload, turns, processes=count) for count in (1, 2))
        print(f"{workload.model}, {workload.devices} devices: one process, two, and the gain of the second")
        for name, seconds in one.items():
            gain = seconds / two[name]
            print(f"  {name:<28} {1e3 * seconds:8.1f} ms {1e3 * two[name]:8.1f} ms {gain:6.2f}x")


if __name__ == "__main__":
    main()
