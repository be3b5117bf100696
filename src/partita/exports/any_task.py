"""Predicting rows for a task that says nothing of tables: a column `input` has numbers for the model."""

import json
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from partita.data.examples import Batch, examples_of
from partita.data.rows import BadRow, Rows
from partita.errors import ConfigError
from partita.protocol import DeviceId
from partita.tasks.predictor import CLASS, NUMBER, Answer, Predictor, class_answers, number_answers
from partita.tasks.task import Task

COLUMN = "input"
"""The column of inputs."""


def any_predictor(task: Task, model: nn.Module, device: DeviceId) -> Predictor:
    """Return how rows are predicted where examples are pairs of tensors, inputs and targets.

    Args:
        task: the task.
        model: any model of it, to see what it predicts.
        device: any device of it, to see what its examples are.

    Raises:
        ConfigError: examples are something else.
    """
    examples = next((found for s in task.devices[device].values() if len(found := examples_of(s))), None)
    batch = None if examples is None else examples.batch_at(torch.tensor([0]))
    if (
        not isinstance(batch, tuple | list)
        or len(batch) != 2
        or not all(isinstance(f, Tensor) for f in batch)
    ):
        raise ConfigError(
            "The task does not say how rows of a table are predicted: give `Task` a `predictor`, or examples "
            "that are pairs of tensors."
        )
    inputs, targets = batch
    with torch.no_grad():
        predictions, _ = task.predict(model, batch)
    kind = _kind_of(predictions, targets)
    return Predictor(
        columns=(COLUMN,),
        examples=partial(_examples, like=inputs[0], target=targets[0]),
        predict=partial(_answers, task=task, kind=kind),
        kinds={"class": CLASS, "number": NUMBER, "values": {"prediction": str}}[kind],
    )


def _kind_of(predictions: Any, targets: Tensor) -> str:
    """Return what predictions are: scores of classes, numbers, or other values."""
    is_scores = isinstance(predictions, Tensor) and predictions.is_floating_point()
    if is_scores and predictions.dim() == 2 and targets.dim() == 1 and not targets.is_floating_point():
        return "class"
    return "number" if isinstance(predictions, Tensor) and predictions.numel() == 1 else "values"


def _answers(model: nn.Module, batch: Batch, *, task: Task, kind: str) -> list[Answer]:
    predictions, _ = task.predict(model, batch)
    if kind == "class":
        return class_answers(predictions)
    if kind == "number":
        return number_answers(predictions)
    values = predictions.tolist() if isinstance(predictions, Tensor) else predictions
    return [{"prediction": json.dumps(value, default=str)} for value in values]


def _examples(rows: Rows, *, like: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs of rows, and one target for all."""
    parsed = rows.parse(partial(_input, like=like))
    inputs = torch.stack(parsed) if parsed else like.new_zeros(0, *like.shape)
    return inputs, target.expand(len(parsed), *target.shape)


def _input(row: Any, *, like: Tensor) -> Tensor:
    try:
        values = torch.tensor(row[COLUMN], dtype=like.dtype)
    except (TypeError, ValueError, RuntimeError):
        raise BadRow(f"`{COLUMN}` must be a list of numbers") from None
    if values.numel() != like.numel():
        raise BadRow(f"`{COLUMN}` must have {like.numel()} numbers, got {values.numel()}")
    if values.is_floating_point() and not values.isfinite().all():
        raise BadRow(f"`{COLUMN}` has a number that is not finite")
    return values.view(like.shape)
