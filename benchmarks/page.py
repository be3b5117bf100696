"""Time to write the report of a run and of a comparison with 1,000 devices, and the sizes of their files.

The runs are small and synthetic. The time is that of the second call of `write_report`, with figures and
tables; the first call also bundles the JavaScript libraries, once per user. Run it with
`python benchmarks/page.py`.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from torch import nn

from partita.config.reading import config_of
from partita.report.write import write_report
from partita.studies import run as runner
from partita.studies.compare import finish
from partita.studies.comparison import begin
from partita.tasks.synthetic import synthetic
from partita.tasks.task import Task
from partita.tasks.validation import hold_out_validation

DEVICES = 1000
STAGE = {"rounds": 100, "devices_per_round": 10}
METHODS = [
    *("finetune", "ditto", "pfedme", "ft_part", "fedalt", "fedsim", "fedalt-stateless", "fedsim-stateless"),
    *("fedprox", "scaffold", "fedadam", "fedper", "fedrep", "fedbabu", "lg_fedavg"),
]
VALUES = {
    "name": "thousand",
    "task": {"kind": "page:task"},
    "partition": {"personal": "output"},
    "pretrain": STAGE,
    "personalize": STAGE,
    "finetune": {"epochs": 1},
}


class Layers(nn.Sequential):
    """A classifier of two layers with all parts that methods name."""

    parts: ClassVar[Mapping[str, Sequence[str]]] = {"input": ["0.*"], "output": ["2.*"], "head": ["2.*"]}

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))


def task() -> Task:
    """Return a synthetic task with three splits."""
    task = synthetic(form="mixture", devices=DEVICES)
    own = Task(model=Layers, loss=task.loss, metrics=task.metrics, devices=task.devices)
    return hold_out_validation(own, 0.2)


def main() -> None:
    """Run and compare, then write each report and print its time and size."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        baseline = {"epochs": 1, "baseline": True}
        config = config_of({**VALUES, "finetune": baseline, "out": str(folder)})
        runner.finish(runner.prepare(config, Path()))
        measure("A run", folder)

        folder = Path(place) / "comparison"
        compare = {"methods": METHODS, "partitions": ["output"], "seeds": 1}
        comparison = begin({**VALUES, "compare": compare, "out": str(folder)}, Path())
        finish(comparison, lambda done, total, text: None)
        measure(f"A comparison of {len(METHODS) + 2} methods", folder)


def measure(what: str, folder: Path) -> None:
    """Write a report twice and print the time of the second."""
    write_report(folder)
    began = time.perf_counter()
    page = write_report(folder)
    seconds = time.perf_counter() - began
    figures = sum(file.stat().st_size for file in (folder / "figures").iterdir())
    print(f"{what} on {DEVICES} devices: {seconds:.1f} s, page {page.stat().st_size / 1e6:.2f} MB,", end=" ")
    print(f"figures {figures / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    main()
