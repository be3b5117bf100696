"""Classification and regression on numeric columns, from a table by device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from partita.data.classes import class_names, count_classes
from partita.data.examples import Batch
from partita.data.numeric import LARGEST, mean_and_std, numeric_columns
from partita.data.options import keys_of, options_of
from partita.data.rows import BadRow, Rows
from partita.data.table import DeviceTable
from partita.data.training_rows import training_tables
from partita.tasks.classification_metrics import classification_metrics
from partita.tasks.derived import Derived, check_agrees, read_derived
from partita.tasks.metrics import Metric, select
from partita.tasks.predictor import (
    NUMBER,
    Answer,
    Predictor,
    class_answers,
    classes_of,
    number_answers,
)
from partita.tasks.regression_metrics import REGRESSION
from partita.tasks.task import Task, default_predict


def tabular(
    *,
    data: str,
    label: str = "label",
    columns: list[str] | None = None,
    regression: bool = False,
    classes: int = 0,
    standardize: bool = True,
    metrics: Sequence[str] | None = None,
    derived: str = "",
    unseen: float = 0.0,
    **table: Any,
) -> Task:
    """Return a task of predicting one column from others.

    Args:
        data: a Parquet table by device.
        label: the column to predict: a class, from 0 on, or with `regression` a number.
        columns: the columns to predict it from. Default: all other numeric and boolean columns.
        regression: whether the label is a number instead of a class.
        classes: the number of classes. 0: one more than the largest label.
        standardize: whether the mean of each column is subtracted and the result divided by its standard
            deviation. Both are computed over the training rows of all devices but the
            unseen ones.
        metrics: the names of metrics, the first being the headline metric: accuracy, top5, macro_f1,
            balanced_accuracy, auroc, log_loss, calibration_error; with `regression` mae, rmse, r2. Default:
            accuracy, with `regression` mae.
        derived: the file `derived.json` of a run, to use its columns, classes and standardization instead of
            computing them.
        unseen: the share of devices that no derived value depends on; in a config, `evaluate.unseen`.
        table: how the table is read, see `TableOptions`.
    """
    if isinstance(columns, str):
        raise ValueError(f"`columns` must be a list of names, got {columns!r}.")
    if label in (columns or ()):
        raise ValueError(f"`columns` must not contain `{label}`, the column to predict.")
    if classes < 0:
        raise ValueError(f"`classes` must be 0 or above, got {classes}.")
    options = options_of(table, keys_of(tabular))
    given = read_derived("tabular", derived)
    names = given["columns"] if given else columns or numeric_columns(Path(data), options, label=label)
    source = DeviceTable(Path(data), options, (*names, label), unseen=unseen)
    values = given or {
        "kind": "tabular",
        "columns": list(names),
        **({} if regression else {"classes": classes or count_classes(source, label)}),
        **(mean_and_std(training_tables(source, names), names) if standardize else {}),
    }
    check_agrees("columns", columns, values)
    check_agrees("classes", classes, values)
    _check_has(values, classes=not regression, mean=standardize)
    classes = values.get("classes", 0)
    parser = _Parser(columns=names, label=label, classes=classes, derived=values)
    known = class_names(source, label, classes) if classes else []
    return Task(
        model=partial(Perceptron, inputs=len(names), outputs=classes or 1),
        loss=_square_error if regression else _cross_entropy,
        metrics=_metrics(metrics, classes),
        devices=source.devices(parser),
        model_options={"inputs": len(names), "outputs": classes or 1, "classes": classes},
        skipped=source.skipped,
        derived=values,
        predictor=_predictor(parser, known),
    )


def _predictor(parser: "_Parser", names: Sequence[str]) -> Predictor:
    """Return how rows without labels are predicted."""

    def predict(model: nn.Module, batch: Batch) -> list[Answer]:
        outputs, _ = default_predict(model, batch)
        return class_answers(outputs, names) if parser.classes else number_answers(outputs)

    return Predictor(
        columns=parser.columns,
        examples=replace(parser, label=""),
        predict=predict,
        kinds=classes_of(names) if parser.classes else NUMBER,
        preprocessing={"columns": list(parser.columns), **({"names": list(names)} if names else {})},
    )


def _metrics(names: Sequence[str] | None, classes: int) -> dict[str, Metric]:
    """Return the metrics with some names; without classes, of regression."""
    if classes:
        return classification_metrics(("accuracy",) if names is None else names, classes)
    return select(("mae",) if names is None else names, REGRESSION, of="regression")


def _check_has(values: Derived, **names: bool) -> None:
    """Raise if derived values have a name that they should not have, or lack one."""
    for name, is_needed in names.items():
        if is_needed != (name in values):
            raise ValueError(
                f"The file `derived` has {'no' if is_needed else 'a value'} `{name}`: its run had another "
                "`regression` or `standardize`."
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


@dataclass(frozen=True, kw_only=True)
class _Parser:
    """Makes examples of rows: inputs, standardized where the derived values have a mean, and label."""

    columns: Sequence[str]
    label: str
    """Empty: rows have no label, and examples the label 0."""
    classes: int
    """The number of classes; 0 for regression."""
    derived: Derived

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        parsed = rows.parse(lambda row: (self._inputs(row), self._label(row)))
        inputs = torch.tensor([values for values, _ in parsed], dtype=torch.float32)
        dtype = torch.long if self.classes else torch.float32
        return inputs.view(-1, len(self.columns)), torch.tensor([label for _, label in parsed], dtype=dtype)

    def _inputs(self, row: Any) -> list[float]:
        values = [_number(row, name) for name in self.columns]
        if "mean" not in self.derived:
            return values
        mean, std = self.derived["mean"], self.derived["std"]
        inputs = [(value - m) / s for value, m, s in zip(values, mean, std, strict=True)]
        for name, value, scaled in zip(self.columns, values, inputs, strict=True):
            if not abs(scaled) <= LARGEST:
                raise BadRow(f"`{name}` is {value:g}, too far from the mean of the training rows")
        return inputs

    def _label(self, row: Any) -> float:
        if not self.label:
            return 0
        label = _number(row, self.label)
        if self.classes and not (label == int(label) and 0 <= label < self.classes):
            raise BadRow(f"`{self.label}` must be a whole number from 0 to {self.classes - 1}, got {label:g}")
        return int(label) if self.classes else label


def _number(row: Any, column: str) -> float:
    value = row[column]
    if not isinstance(value, int | float | Decimal):
        raise BadRow(f"`{column}` must be a number, got {value!r}")
    if not abs(value) <= LARGEST:
        raise BadRow(f"`{column}` must be a finite number, got {value}")
    return float(value)


def _cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def _square_error(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    return (model(inputs).squeeze(1) - targets).square().mean()
