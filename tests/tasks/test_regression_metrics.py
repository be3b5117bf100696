"""Metrics of regression, by hand."""

import pytest
import torch

from partita import Undefined
from partita.tasks.regression_metrics import mean_absolute_error, r2, root_mean_squared_error

PREDICTIONS = torch.tensor([[1.0], [2.0], [6.0]])
TARGETS = torch.tensor([1.0, 4.0, 4.0])


def test_errors_of_a_column_of_predictions() -> None:
    # Errors 0, 2 and 2.
    assert mean_absolute_error(PREDICTIONS, TARGETS) == pytest.approx(4 / 3)
    assert root_mean_squared_error(PREDICTIONS, TARGETS) == pytest.approx((8 / 3) ** 0.5)
    # The mean is 3, and the squares around it are 4, 1 and 1.
    assert r2(PREDICTIONS, TARGETS) == pytest.approx(1 - 8 / 6)


def test_predictions_need_no_column() -> None:
    for metric in (mean_absolute_error, root_mean_squared_error, r2):
        assert metric(PREDICTIONS.squeeze(1), TARGETS) == metric(PREDICTIONS, TARGETS)


@pytest.mark.parametrize(
    ("targets", "reason"), [([1.0], "one example only"), ([2.0, 2.0, 2.0], "the targets do not vary")]
)
def test_r2_is_undefined_without_variance(targets: list[float], reason: str) -> None:
    with pytest.raises(Undefined, match=reason):
        r2(torch.zeros(len(targets), 1), torch.tensor(targets))
