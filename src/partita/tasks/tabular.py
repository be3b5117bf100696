"""Classification and regression on numeric columns, from a table by device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from partita.data.examples import Batch
from partita.data.options import keys_of, options_of
from partita.data.rows import BadRow, Rows
from partita.data.table import DeviceTable, numeric_columns
from partita.tasks.metrics import Metric, accuracy
from partita.tasks.task import Task

_LARGEST = torch.finfo(torch.float32).max


def tabular(
    *,
    data: str,
    label: str = "label",
    columns: list[str] | None = None,
    regression: bool = False,
    classes: int = 0,
    **table: Any,
) -> Task:
    """Return a task of predicting one column from others.

    Args:
        data: a Parquet table by device.
        label: the column to predict: a class, from 0 on, or with `regression` a number.
        columns: the columns to predict it from. Default: all other numeric and boolean columns.
        regression: whether the label is a number instead of a class.
        classes: the number of classes. 0: one more than the largest label.
        table: how the table is read, see `TableOptions`.
    """
    if isinstance(columns, str):
        raise ValueError(f"`columns` must be a list of names, got {columns!r}.")
    if label in (columns or ()):
        raise ValueError(f"`columns` must not contain `{label}`, the column to predict.")
    if classes < 0:
        raise ValueError(f"`classes` must be 0 or above, got {classes}.")
    options = options_of(table, keys_of(tabular))
    names = columns or numeric_columns(Path(data), options, label=label)
    source = DeviceTable(Path(data), options, (*names, label))
    if not regression:
        classes = classes or source.classes(label)
    parser = _Parser(columns=names, label=label, classes=0 if regression else classes)
    return Task(
        model=partial(Perceptron, inputs=len(names), outputs=1 if regression else classes),
        loss=_square_error if regression else _cross_entropy,
        metrics={"error": Metric(mean_absolute_error, "down")} if regression else {"accuracy": accuracy},
        devices=source.devices(parser),
        model_options={"inputs": len(names), "outputs": 1 if regression else classes, "classes": classes},
        skipped=source.skipped,
    )


class Perceptron(nn.Module):
    """A perceptron with one hidden layer.

    Args:
        inputs: the number of inputs.
        outputs: the number of outputs.
        hidden: the number of hidden units.
    """

    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "input": ("hidden.*",),
        "output": ("head.*",),
        "head": ("head.*",),
    }

    def __init__(self, *, inputs: int, outputs: int, hidden: int = 32) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs for each row."""
        return self.head(torch.relu(self.hidden(inputs)))


def mean_absolute_error(predictions: Tensor, targets: Tensor) -> float:
    """Return the mean absolute error.

    >>> mean_absolute_error(torch.tensor([[1.0], [4.0]]), torch.tensor([2.0, 2.0]))
    1.5
    """
    return (predictions.squeeze(1) - targets).abs().double().mean().item()


@dataclass(frozen=True, kw_only=True)
class _Parser:
    """Makes examples of rows: inputs and label."""

    columns: Sequence[str]
    label: str
    classes: int
    """The number of classes; 0 for regression."""

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        parsed = rows.parse(lambda row: ([_number(row, name) for name in self.columns], self._label(row)))
        inputs = torch.tensor([values for values, _ in parsed], dtype=torch.float32)
        dtype = torch.long if self.classes else torch.float32
        return inputs.view(-1, len(self.columns)), torch.tensor([label for _, label in parsed], dtype=dtype)

    def _label(self, row: Any) -> float:
        label = _number(row, self.label)
        if self.classes and not (label == int(label) and 0 <= label < self.classes):
            raise BadRow(f"`{self.label}` must be a whole number from 0 to {self.classes - 1}, got {label:g}")
        return int(label) if self.classes else label


def _number(row: Any, column: str) -> float:
    value = row[column]
    if not isinstance(value, int | float | Decimal):
        raise BadRow(f"`{column}` must be a number, got {value!r}")
    if not abs(value) <= _LARGEST:
        raise BadRow(f"`{column}` must be a finite number, got {value}")
    return float(value)


def _cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def _square_error(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    return (model(inputs).squeeze(1) - targets).square().mean()
