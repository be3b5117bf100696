"""Equalities that metrics must obey."""

import math

import pytest
import torch
from torch import Tensor

from partita import accuracy
from partita.tasks.classification_metrics import (
    CLASSIFICATION,
    auroc,
    balanced_accuracy,
    calibration_error,
    log_loss,
    macro_f1,
    top5_accuracy,
)
from partita.tasks.regression_metrics import mean_absolute_error, r2, root_mean_squared_error


def draw(examples: int, classes: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Random scores, and targets with the same number of examples of each class."""
    scores = torch.randn(examples, classes, generator=torch.Generator().manual_seed(seed))
    return scores, torch.arange(examples) % classes


def test_auroc_depends_only_on_the_order_of_scores() -> None:
    scores, targets = draw(60, 2)
    odds = scores[:, 1] - scores[:, 0]
    transformed = torch.stack([torch.zeros(60), 50 * odds**3 + 7], dim=1)

    assert auroc(transformed, targets) == auroc(scores, targets)
    assert auroc(-scores, targets) == pytest.approx(1 - auroc(scores, targets))


def test_balanced_accuracy_is_accuracy_on_balanced_data() -> None:
    scores, targets = draw(60, 6)

    assert balanced_accuracy(scores, targets) == pytest.approx(accuracy(scores, targets))


def test_uniform_scores_cost_log_k_and_are_calibrated_if_right_by_chance() -> None:
    _, targets = draw(60, 6)

    assert log_loss(torch.zeros(60, 6), targets) == pytest.approx(math.log(6))
    assert calibration_error(torch.zeros(60, 6), targets) == pytest.approx(0.0)
    assert auroc(torch.zeros(60, 6), targets) == 0.5


def test_top_5_accuracy_is_at_least_accuracy_and_of_six_classes_leaves_out_the_last() -> None:
    scores, targets = draw(60, 6)

    assert top5_accuracy(scores, targets) >= accuracy(scores, targets)
    assert top5_accuracy(scores, targets) == pytest.approx(1 - accuracy(-scores, targets))


def test_a_perfect_classifier_has_the_best_value_of_every_metric() -> None:
    targets = torch.arange(24) % 8
    values = {
        name: named.metric.compute(1000 * torch.eye(8)[targets], targets)
        for name, named in CLASSIFICATION.items()
    }

    best = {name: 1.0 if named.metric.direction == "up" else 0.0 for name, named in CLASSIFICATION.items()}
    assert values == best


@pytest.mark.parametrize(
    "metric", [accuracy, macro_f1, balanced_accuracy, auroc, log_loss, calibration_error]
)
def test_renaming_classes_and_reordering_examples_change_nothing(metric: object) -> None:
    assert callable(metric)
    scores, targets = draw(50, 7)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(2))
    names = torch.randperm(7, generator=torch.Generator().manual_seed(3))

    renamed = torch.empty_like(scores)
    renamed[:, names] = scores

    assert metric(renamed[order], names[targets][order]) == pytest.approx(metric(scores, targets))


def test_errors_scale_with_the_targets_and_r2_does_not() -> None:
    predictions, targets = torch.randn(2, 30, generator=torch.Generator().manual_seed(1)).double()

    for metric in (mean_absolute_error, root_mean_squared_error):
        assert metric(3 * predictions, 3 * targets) == pytest.approx(3 * metric(predictions, targets))
    assert r2(3 * predictions + 1, 3 * targets + 1) == pytest.approx(r2(predictions, targets))
    assert r2(targets.mean().expand(30), targets) == pytest.approx(0.0)
    variance = targets.var(correction=0).item()
    error = root_mean_squared_error(predictions, targets)
    assert r2(predictions, targets) == pytest.approx(1 - error**2 / variance)
