"""Metrics of classification, against numbers worked by hand and other formulas."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from partita import Undefined
from partita.tasks.classification_metrics import (
    CLASSIFICATION,
    auroc,
    balanced_accuracy,
    calibration_error,
    log_loss,
    macro_f1,
    top5_accuracy,
)


def predicting(*classes: int, of: int = 3) -> torch.Tensor:
    """Scores whose largest is that of the given class."""
    return torch.eye(of)[list(classes)]


def test_a_target_among_the_five_largest_scores_counts() -> None:
    scores = torch.tensor([[6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]]).expand(3, -1)

    # The targets have the first, the fifth and the sixth place.
    assert top5_accuracy(scores, torch.tensor([0, 4, 5])) == pytest.approx(2 / 3)
    # One device may have few classes among its targets.
    assert top5_accuracy(scores[:1], torch.tensor([6])) == 0.0


def test_macro_f1_is_the_mean_over_classes_that_are_a_target_or_a_prediction() -> None:
    # Class 0: one of two predictions right, all of one found: F1 2/3. Class 1: none found, 0. Class 2: 0.
    assert macro_f1(predicting(0, 0, 2), torch.tensor([0, 1, 1])) == pytest.approx(2 / 9)
    # Neither a target nor a prediction: of five classes, only two count.
    assert macro_f1(predicting(0, 0, 1, of=5), torch.tensor([0, 1, 1])) == pytest.approx(2 / 3)


def test_balanced_accuracy_is_the_mean_over_classes_among_the_targets() -> None:
    # Class 0: 3 of 4 right. Class 1: 1 of 2 right. Class 2 is no target, though it is predicted.
    targets = torch.tensor([0, 0, 0, 0, 1, 1])

    assert balanced_accuracy(predicting(0, 0, 0, 1, 1, 2), targets) == pytest.approx((3 / 4 + 1 / 2) / 2)


def test_auroc_of_two_classes_is_the_share_of_pairs_in_order() -> None:
    # Positives 0.1 and 0.8, negatives 0.1 and 0.5. Of four pairs, two are in order and one is a tie.
    scores = torch.stack([torch.zeros(4), torch.tensor([0.1, 0.8, 0.1, 0.5])], dim=1)

    assert auroc(scores, torch.tensor([1, 1, 0, 0])) == pytest.approx(2.5 / 4)


def test_auroc_of_more_classes_is_the_mean_over_those_among_the_targets() -> None:
    scores = 2 * torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    targets = torch.randint(4, (40,), generator=torch.Generator().manual_seed(2))

    areas: list[float] = []
    for each in range(4):
        ranked = scores.double().softmax(dim=1)[:, each]
        pairs = ranked[targets == each][:, None] - ranked[targets != each]
        areas.append(((pairs > 0).double() + 0.5 * (pairs == 0)).mean().item())

    assert auroc(scores, targets) == pytest.approx(np.mean(areas))


def test_auroc_keeps_the_order_of_confident_predictions() -> None:
    # The probability of class 1 rounds to 1 for all of them.
    scores = torch.tensor([[0.0, 60.0], [0.0, 50.0], [0.0, 40.0]])

    assert auroc(scores, torch.tensor([1, 0, 0])) == 1.0
    assert auroc(scores, torch.tensor([0, 1, 0])) == 0.5


def test_auroc_is_undefined_for_one_class() -> None:
    with pytest.raises(Undefined, match="all targets are of one class"):
        auroc(torch.randn(3, 4), torch.tensor([2, 2, 2]))


def test_log_loss_is_that_of_probabilities_and_does_not_clip() -> None:
    scores = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(30) % 4
    probabilities = scores.double().softmax(dim=1)

    expected = sklearn_metrics.log_loss(targets.numpy(), probabilities.numpy())
    assert log_loss(scores, targets) == pytest.approx(expected)
    # A mistake with a probability of exp(-100).
    assert log_loss(torch.tensor([[100.0, 0.0]]), torch.tensor([1])) == pytest.approx(100.0)


def scores_of(*confidences: float) -> torch.Tensor:
    """Scores of two classes that predict the first one with some probability."""
    return torch.tensor([[math.log(c / (1 - c)), 0.0] for c in confidences], dtype=torch.double)


def test_calibration_error_by_hand() -> None:
    # Bins of 1/15: 0.61 and 0.64 are both in (9/15, 10/15], 0.95 is in (14/15, 1].
    # |(0.61 + 0.64) - 1| = 0.25 for one of the first two right, |0.95 - 0| for the third; over 3 examples.
    targets = torch.tensor([0, 1, 1])

    assert calibration_error(scores_of(0.61, 0.64, 0.95), targets) == pytest.approx((0.25 + 0.95) / 3)


def test_errors_of_calibration_do_not_cancel_between_bins() -> None:
    # Too sure in one bin, not sure enough in the other.
    one_bin, two_bins = scores_of(0.75, 0.75), scores_of(0.6, 0.9)

    assert calibration_error(one_bin, torch.tensor([0, 1])) == pytest.approx(0.25)
    assert calibration_error(two_bins, torch.tensor([0, 1])) == pytest.approx((0.4 + 0.9) / 2)


def test_a_confidence_of_1_is_in_the_last_bin() -> None:
    assert calibration_error(torch.tensor([[900.0, 0.0]]), torch.tensor([0])) == 0.0
    assert calibration_error(torch.tensor([[900.0, 0.0]]), torch.tensor([1])) == 1.0


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_no_metric_has_a_value_where_a_score_is_infinite(name: str) -> None:
    scores = torch.randn(8, 7, generator=torch.Generator().manual_seed(1))
    scores[3, 2] = -math.inf

    with pytest.raises(Undefined, match="predictions are not finite"):
        CLASSIFICATION[name].metric.compute(scores, torch.arange(8) % 7)


@pytest.mark.parametrize("name", CLASSIFICATION)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_of_half_precision_count_with_their_values(name: str, dtype: torch.dtype) -> None:
    scores = torch.randn(8, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
    targets, compute = torch.arange(8) % 7, CLASSIFICATION[name].metric.compute

    assert compute(scores, targets) == compute(scores.double(), targets)
