"""Memory of a run that evaluates all of its devices, and of its report: 100,000 devices against 20,000.

    python benchmarks/many_evaluated.py [FOLDER]

Devices reply at once, with numbers of their own: what is measured is the server's part. Each run and each
report has a process of its own. The figures are the memory of the process before the first round, with the
ids, and its peaks from there to the last round and to the end. What a run without a folder writes is in
memory up to a megabyte: both numbers of devices are beyond it.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from process_memory import begin_peak, memory

DEVICES = 20_000, 100_000
ROUNDS, COHORT = 10, 50


def run(devices: int, folder: Path | None) -> dict[str, int]:
    """Run pretraining's evaluation, rounds, fine-tuning and evaluations, and return the memory.

    Args:
        devices: how many.
        folder: the folder of the run; None: the run has none.
    """
    import torch
    from torch import nn

    import partita
    from partita.protocol import Evaluate, Order, Reply, Update

    class Replies:
        """An executor whose devices reply at once."""

        def __enter__(self) -> Self:
            return self

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            return None

        def devices(self) -> Sequence[str]:
            return task.devices.ids

        def ask(self, orders: Iterable[Order]) -> Iterator[Reply]:
            if not found:
                found["before the first round"] = memory("VmRSS")
                begin_peak()
            for order in orders:
                value = int(order.device.removeprefix("device-")) * 7919 % 1000 / 1000
                losses = {"examples": 2, "loss": value, "start_loss": value}
                measures = {"examples": 2, "weight": 2, "loss": value, "accuracy": value, "reason": None}
                change = {name: torch.zeros_like(tensor) for name, tensor in order.shared.items()}
                is_evaluation = isinstance(order.work, Evaluate)
                yield Reply(
                    device=order.device,
                    weight=2,
                    change=change if isinstance(order.work, Update) else None,
                    metrics=dict.fromkeys(("train", "test"), measures)
                    if is_evaluation
                    else {"train": losses},
                )

        def close(self, label: str, counted: Sequence[str], asked: Sequence[str]) -> None:
            return None

        def restore(self, label: str) -> None:
            return None

    def load(device: str) -> dict[str, Any]:
        split = torch.ones(2, 4), torch.zeros(2).long()
        return {"train": split, "test": split}

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def watch(line: Mapping[str, Any], done: int, total: int) -> None:
        found["peak of the rounds"] = memory("VmHWM")

    task = partita.Task(
        model=model,
        loss=loss,
        metrics={"accuracy": partita.accuracy},
        devices=partita.Devices((f"device-{number:07}" for number in range(devices)), load=load),
    )
    found: dict[str, int] = {}
    training = partita.Training(method=partita.FedAlt(shared_lr=0.1), rounds=ROUNDS, devices_per_round=COHORT)
    plan = partita.Plan(personalize=training, finetune=partita.Finetuning(epochs=1, personal_lr=0.1))
    partition = partita.Partition(model(), personal="1.*")
    partita.pipeline(task, partition, plan, out=folder, watch=watch, executor=Replies())
    return {**found, "peak to the end": memory("VmHWM")}


def report(folder: Path) -> dict[str, int]:
    """Write the report of a run and return the memory, and the size of the page."""
    from partita.report.write import write_report

    page = write_report(folder)
    return {"peak to the end": memory("VmHWM"), "page": page.stat().st_size}


def measured(work: str, devices: int, folder: Path) -> dict[str, int]:
    """Return what a process of its own has measured."""
    command = [sys.executable, __file__, work, str(devices), str(folder / str(devices))]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main(folder: Path) -> None:
    """Print the memory of runs and reports, and what each further device adds."""
    for work in ("run", "run without out", "report"):
        few, many = (measured(work, devices, folder) for devices in DEVICES)
        for moment in few:
            each = (many[moment] - few[moment]) / (DEVICES[1] - DEVICES[0])
            numbers = f"{few[moment] / 1e6:.1f} MB and {many[moment] / 1e6:.1f} MB"
            print(f"{work}, {moment}: {numbers}, {each:.0f} bytes a further device", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        work, devices, place = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
        if work == "report":
            print(json.dumps(report(place)))
        else:
            print(json.dumps(run(devices, place if work == "run" else None)))
    elif len(sys.argv) == 2:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
