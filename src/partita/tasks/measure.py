"""Measuring one model on one device: the loss, and metrics over all of its predictions."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from partita.data.examples import Examples, in_order
from partita.data.moving import CPU, moved
from partita.partition.tensors import look_inside
from partita.protocol import Measures
from partita.tasks.metrics import Metric, Undefined
from partita.tasks.one_pass import one_pass_of
from partita.tasks.task import Task

_BATCH_SIZE = 256
"""The batch size is fixed: another one may give other bits."""
NOT_NUMBERS = "predictions are not a number"
"""In the reason for a metric without a value, if the model predicts NaN."""


def measure(task: Task, model: nn.Module, examples: Examples) -> Measures:
    """Return the number of examples, the loss and every metric of the task, in eval mode.

    Metrics are computed on the CPU, wherever the model is.

    Parameters require no gradient, but autograd stays enabled: a loss may compute gradients of its own. An
    undefined value is None, and `reason` gives the reason; where the loss is not finite, all values are None.
    """
    inside = look_inside(model)
    inside.set_training(training=False)
    inside.stop_gradients()
    one_pass = one_pass_of(model)
    losses: list[float] = []
    predictions: list[Any] = []
    targets: list[Any] = []
    with one_pass.watched():
        for batch, size in in_order(examples, _BATCH_SIZE):
            with one_pass.loss():
                losses.append(task.loss(model, batch).item() * size)
            with torch.no_grad(), one_pass.predict():
                predicted, target = task.predict(model, batch)
            predictions.append(predicted)
            targets.append(target)
    with torch.no_grad():
        loss = sum(losses) / len(examples)
        whole = moved(_concatenate(predictions), CPU), moved(_concatenate(targets), CPU)
        values: dict[str, float | None] = {"loss": loss}
        reasons: list[str] = []
        for name, metric in task.metrics.items():
            values[name], reason = _value(name, metric, *whole)
            reasons += reason
    if not math.isfinite(loss):
        # The predictions of such a model mean nothing, whatever they are.
        values, reasons = dict.fromkeys(values), [f"the loss is {loss}"]
    return {
        "examples": len(examples),
        "weight": int(task.weight(whole[1])),
        **values,
        "reason": "; ".join(reasons) or None,
    }


def _value(name: str, metric: Metric, predictions: Any, targets: Any) -> tuple[float | None, list[str]]:
    if isinstance(predictions, Tensor) and predictions.isnan().any():
        return None, [f"`{name}`: {NOT_NUMBERS}"]
    try:
        value = metric.compute(predictions, targets)
    except Undefined as error:
        return None, [f"`{name}`: {error}"]
    if value is None:
        return None, [f"`{name}` has no value here"]
    if not math.isfinite(value):
        return None, [f"`{name}` is {float(value)}"]
    return float(value), []


def _concatenate(parts: Sequence[Any]) -> Any:
    if all(isinstance(part, Tensor) for part in parts):
        return torch.cat(list(parts))
    return [item for part in parts for item in part]
