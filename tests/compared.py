"""Small comparisons: six devices, two rounds a stage, one partition."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from partita import Metric, Task
from partita.report.tables.comparison import write_comparison_tables
from partita.studies.begin import begin
from partita.studies.compare import finish
from partita.studies.comparison import Comparison
from partita.tasks.metrics import Undefined
from small import affine_devices, affine_task

ROUNDS = {"rounds": 2, "devices_per_round": 3, "batch_size": 3, "shared_lr": 0.05}


def values(*methods: str, **sections: Mapping[str, Any]) -> dict[str, Any]:
    """A comparison of some methods on the offset of a small model, two seeds, with changes by section."""
    whole: dict[str, Any] = {
        "name": "small",
        "seed": 3,
        "task": {"kind": "compared:plain"},
        "pretrain": ROUNDS,
        "personalize": ROUNDS,
        "finetune": {"epochs": 1, "batch_size": 3, "personal_lr": 0.05},
        "compare": {"methods": list(methods), "partitions": ["output"], "seeds": 2},
    }
    for section, changes in sections.items():
        whole[section] = {**whole.get(section, {}), **changes} if isinstance(changes, Mapping) else changes
    return whole


def plain() -> Task:
    return affine_task()


class LowRank(nn.Module):
    """Predicts x . (w + A B): w is fixed by the model, A and B are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(3, 1).requires_grad_(False)
        self.lora_A = nn.Linear(3, 2, bias=False)
        self.lora_B = nn.Linear(2, 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.base(inputs) + self.lora_B(self.lora_A(inputs))).squeeze(1)


def low_rank(fixed: bool = True) -> Task:
    return affine_task(model=LowRank if fixed else lambda: LowRank().requires_grad_(True))


class Normalized(nn.Module):
    """A linear layer, BatchNorm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.norm(self.stem(inputs))).squeeze(1)


def normalized() -> Task:
    return affine_task(model=Normalized)


def one_device() -> Task:
    return affine_task(devices={"alone": affine_devices()["d3"]})


def worse() -> Task:
    """A task whose metric is better if lower."""
    return affine_task(metrics={"error": Metric(lambda p, t: (p - t).abs().mean().item(), "down")})


def closeness_of_many(predictions: Tensor, targets: Tensor) -> float:
    if targets.mean() < 0:
        raise Undefined("the mean is negative")
    return -(predictions - targets).abs().mean().item()


def undefined_on_some() -> Task:
    return affine_task(metrics={"closeness": closeness_of_many})


def mostly_nan() -> Task:
    """A task on which four of six devices cannot train in rounds: their training targets are not numbers."""
    devices = affine_devices()
    for device in list(devices)[:4]:
        inputs, targets = devices[device]["train"]
        devices[device]["train"] = inputs, targets * float("nan")
    return affine_task(devices=devices)


def diverging_metric() -> Task:
    """A task whose metric is undefined as soon as predictions are large."""

    def metric(predictions: Tensor, targets: Tensor) -> float | None:
        return None if predictions.abs().max() > 100 else 1.0

    return affine_task(metrics={"closeness": metric})


def quiet(*_: object) -> None:
    """Ignore the progress."""


def started(folder: Path, given: Mapping[str, Any]) -> Comparison:
    return begin({**given, "out": str(folder)}, Path())


def done(folder: Path, given: Mapping[str, Any]) -> tuple[Comparison, dict[str, str]]:
    """A finished comparison in a folder, with its tables."""
    comparison = started(folder, given)
    failed = finish(comparison, quiet)
    write_comparison_tables(comparison, failed)
    return comparison, failed


def table(folder: Path, name: str = "methods") -> list[dict[str, str]]:
    """The rows of a table, without times."""
    with (folder / "tables" / f"{name}.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    return [{column: text for column, text in row.items() if column != "device-seconds"} for row in rows]


def tables(folder: Path) -> dict[str, Any]:
    """All tables, without times."""
    names = sorted(path.stem for path in (folder / "tables").glob("*.csv"))
    bib = (folder / "tables/references.bib").read_text()
    return {name: table(folder, name) for name in names} | {"bib": bib}
