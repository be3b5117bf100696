"""Telling a class or a number from numbers, from a table with numeric columns by device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from partita.data.columns import numeric_columns
from partita.data.examples import Batch
from partita.data.options import options_of
from partita.data.rows import BadRow, Rows
from partita.data.table import DeviceTable
from partita.tasks.metrics import Metric, accuracy
from partita.tasks.task import Task

_MOST = torch.finfo(torch.float32).max


def tabular(
    *,
    data: str,
    label: str = "label",
    columns: list[str] | None = None,
    regression: bool = False,
    classes: int = 0,
    **table: Any,
) -> Task:
    """Return the task of telling a column from others.

    Args:
        data: a Parquet table by device.
        label: the column to tell: a class, from 0 on, or with `regression` a number.
        columns: the columns to tell it from; left out: all other columns of numbers, and of true and false.
        regression: whether the label is a number.
        classes: how many classes there are; 0: as many as the largest label says.
        table: how the table is read, see `TableOptions`.
    """
    if isinstance(columns, str):
        raise ValueError(f"`columns` must be a list of names, got {columns!r}.")
    if label in (columns or ()):
        raise ValueError(f"`columns` must not have `{label}`, the label that is told from them.")
    if classes < 0:
        raise ValueError(f"`classes` must be 0 or above, got {classes}.")
    options = options_of(table)
    names = columns or numeric_columns(Path(data), options, besides=label)
    source = DeviceTable(Path(data), options, (*names, label))
    if not regression:
        classes = classes or source.classes(label)
    read = _Reader(columns=names, label=label, classes=0 if regression else classes)
    return Task(
        model=partial(Perceptron, inputs=len(names), outputs=1 if regression else classes),
        loss=_square_error if regression else _cross_entropy,
        metrics={"error": Metric(mean_absolute_error, "down")} if regression else {"accuracy": accuracy},
        devices=source.devices(read),
        model_options={"inputs": len(names), "outputs": 1 if regression else classes, "classes": classes},
        skipped=source.skipped,
    )


class Perceptron(nn.Module):
    """Two linear layers.

    Args:
        inputs: how many numbers go in.
        outputs: how many come out.
        hidden: how many there are between.
    """

    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {"input": ("hidden.*",), "output": ("head.*",)}

    def __init__(self, *, inputs: int, outputs: int, hidden: int = 32) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return scores, or one number, for each row."""
        return self.head(torch.relu(self.hidden(numbers)))


def mean_absolute_error(predictions: Tensor, targets: Tensor) -> float:
    """Return the mean distance of predictions from targets.

    >>> mean_absolute_error(torch.tensor([[1.0], [4.0]]), torch.tensor([2.0, 2.0]))
    1.5
    """
    return (predictions.squeeze(1) - targets).abs().double().mean().item()


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Makes examples of rows: numbers, and what is to be told from them."""

    columns: Sequence[str]
    label: str
    classes: int
    """How many classes; 0 for a number."""

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        read = rows.used(lambda row: ([_number(row, name) for name in self.columns], self._label(row)))
        numbers = torch.tensor([numbers for numbers, _ in read], dtype=torch.float32)
        kind = torch.long if self.classes else torch.float32
        return numbers.view(-1, len(self.columns)), torch.tensor([label for _, label in read], dtype=kind)

    def _label(self, row: Any) -> float:
        label = _number(row, self.label)
        if self.classes and not (label == int(label) and 0 <= label < self.classes):
            raise BadRow(f"`{self.label}` must be a whole number from 0 to {self.classes - 1}, got {label:g}")
        return int(label) if self.classes else label


def _number(row: Any, column: str) -> float:
    value = row[column]
    if not isinstance(value, int | float | Decimal):
        raise BadRow(f"`{column}` must be a number, got {value!r}")
    if not abs(value) <= _MOST:
        raise BadRow(f"`{column}` is {value}")
    return float(value)


def _cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    numbers, labels = batch
    return nn.functional.cross_entropy(model(numbers), labels)


def _square_error(model: nn.Module, batch: Batch) -> Tensor:
    numbers, targets = batch
    return (model(numbers).squeeze(1) - targets).square().mean()
