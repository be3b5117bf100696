"""Metrics of regression, from one prediction for each example of a device."""

from typing import Any

from torch import Tensor

from partita.tasks.metrics import Metric, NamedMetric, Undefined, check_finite


def mean_absolute_error(predictions: Tensor, targets: Tensor) -> float:
    """Return the mean absolute error.

    >>> import torch
    >>> mean_absolute_error(torch.tensor([[1.0], [4.0]]), torch.tensor([2.0, 2.0]))
    1.5
    """
    return (predictions.view_as(targets) - targets).abs().double().mean().item()


def root_mean_squared_error(predictions: Tensor, targets: Tensor) -> float:
    """Return the root of the mean squared error: in the unit of the targets, with large errors weighing more.

    >>> import torch
    >>> root_mean_squared_error(torch.tensor([[1.0], [9.0]]), torch.tensor([2.0, 2.0]))
    5.0
    """
    from sklearn import metrics

    return float(metrics.root_mean_squared_error(*_arrays(predictions, targets)))


def r2(predictions: Tensor, targets: Tensor) -> float:
    """Return the coefficient of determination: 1 if exact, 0 for the mean of the device's own targets.

    It is negative for predictions that are worse than this mean.

    Raises:
        Undefined: there are fewer than two examples, or all targets are equal.

    >>> import torch
    >>> r2(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1.0, 3.0, 2.0]))
    0.0
    """
    from sklearn.metrics import r2_score

    if len(targets) < 2 or (targets == targets[0]).all():
        raise Undefined("the targets do not vary" if len(targets) > 1 else "there is one example only")
    return float(r2_score(*_arrays(predictions, targets)))


def _arrays(predictions: Tensor, targets: Tensor) -> tuple[Any, Any]:
    """Return targets and predictions as scikit-learn takes them, in this order."""
    check_finite(predictions)
    return targets.double().cpu().numpy(), predictions.double().view_as(targets).cpu().numpy()


REGRESSION = {
    "mae": NamedMetric("mean absolute error", Metric(mean_absolute_error, "down")),
    "rmse": NamedMetric("RMSE", Metric(root_mean_squared_error, "down")),
    "r2": NamedMetric("R2", Metric(r2)),
}
"""The metrics of regression, by their names in a config."""
