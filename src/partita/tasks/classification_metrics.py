"""Metrics of classification, from the scores (logits) of all examples of a device.

scikit-learn computes them, except where it lacks a metric or where probabilities would lose digits that
scores still have. Scores of any precision are converted to double precision; no metric has a value where one
of them is not finite.
"""

from collections.abc import Callable, Sequence
from functools import wraps

import numpy as np
import torch
from torch import Tensor, nn

from partita.tasks.metrics import Metric, NamedMetric, Undefined, accuracy, check_finite, select

_BINS = 15
_TOP = 5

ScoresFn = Callable[[Tensor, Tensor], float]
"""Computes a metric from scores and target classes."""


def _of_scores(compute: ScoresFn) -> ScoresFn:
    """Return a metric that gets finite scores in double precision; scikit-learn cannot read bfloat16."""

    @wraps(compute)
    def checked(scores: Tensor, targets: Tensor) -> float:
        check_finite(scores)
        return compute(scores.double(), targets)

    return checked


def classification_metrics(names: Sequence[str], classes: int) -> dict[str, Metric]:
    """Return the metrics that `task.metrics` names, by title.

    Raises:
        ValueError: a name is not that of a metric of classification, or there are too few classes for it.
    """
    metrics = select(names, CLASSIFICATION, of="classification")
    if "top5" in names and classes <= _TOP:
        raise ValueError(f"`metrics`: `top5` needs more than {_TOP} classes, and there are {classes}.")
    return metrics


@_of_scores
def top5_accuracy(scores: Tensor, targets: Tensor) -> float:
    """Return the share of examples whose target class is among the five with the largest scores."""
    from sklearn.metrics import top_k_accuracy_score

    classes = np.arange(scores.shape[1])
    return top_k_accuracy_score(targets.cpu().numpy(), scores.cpu().numpy(), k=_TOP, labels=classes)


@_of_scores
def macro_f1(scores: Tensor, targets: Tensor) -> float:
    """Return the mean of the classes' F1 scores, over the classes that are a target or a prediction.

    >>> macro_f1(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 1, 1]))
    0.6666666666666666
    """
    from sklearn.metrics import f1_score

    return float(f1_score(targets.cpu().numpy(), scores.argmax(dim=1).cpu().numpy(), average="macro"))


@_of_scores
def balanced_accuracy(scores: Tensor, targets: Tensor) -> float:
    """Return the mean of the classes' accuracies, over the classes among the targets.

    >>> balanced_accuracy(torch.eye(3)[[0, 0, 0, 2]], torch.tensor([0, 0, 0, 1]))
    0.5
    """
    from sklearn.metrics import recall_score

    # `balanced_accuracy_score` is the same number, with a warning for a predicted class that is no target.
    found, predicted = targets.cpu().numpy(), scores.argmax(dim=1).cpu().numpy()
    return float(recall_score(found, predicted, labels=np.unique(found), average="macro"))


@_of_scores
def auroc(scores: Tensor, targets: Tensor) -> float:
    """Return the area under the ROC curve; for more than two classes, the mean of one class against the rest.

    The mean is without weights, over the classes among the targets: for an absent class the area is
    undefined. Examples are ranked by the log-odds of the class, x_c - log sum exp x_rest: the same order as
    by its probability, without ties where probabilities round to 1.

    Raises:
        Undefined: all targets are of one class.

    >>> auroc(torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]]), torch.tensor([0, 1, 0]))
    1.0
    """
    from sklearn.metrics import roc_auc_score

    present = targets.unique()
    if len(present) < 2:
        raise Undefined("all targets are of one class")
    is_class = (targets[:, None] == present).cpu().numpy()
    odds = torch.stack([_log_odds(scores, each) for each in present.tolist()], dim=1)
    return float(roc_auc_score(is_class, odds.cpu().numpy(), average="macro"))


def _log_odds(scores: Tensor, of: int) -> Tensor:
    rest = torch.cat([scores[:, :of], scores[:, of + 1 :]], dim=1)
    return scores[:, of] - rest.logsumexp(dim=1)


@_of_scores
def log_loss(scores: Tensor, targets: Tensor) -> float:
    """Return the mean negative log-probability of the target class, in nats.

    It is computed from the scores in double precision: scikit-learn takes probabilities, which it clips, so
    that a mistake could cost 36 at most.
    """
    return nn.functional.cross_entropy(scores, targets).item()


@_of_scores
def calibration_error(scores: Tensor, targets: Tensor) -> float:
    """Return the expected calibration error: the mean distance of accuracy from confidence.

    The confidence of a prediction is the largest probability. The mean is over 15 bins of confidence of equal
    width, weighted by their examples.

    On Calibration of Modern Neural Networks
        C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger. ICML 2017.
        https://arxiv.org/abs/1706.04599

    >>> calibration_error(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]))
    0.5
    """
    confidence, predicted = scores.softmax(dim=1).max(dim=1)
    bins = (confidence * _BINS).ceil().long() - 1
    gaps = torch.zeros(_BINS, dtype=torch.double, device=scores.device)
    gaps.index_add_(0, bins.clamp(0, _BINS - 1), (predicted == targets).double() - confidence)
    return gaps.abs().sum().item() / len(targets)


CLASSIFICATION = {
    "accuracy": NamedMetric("accuracy", Metric(_of_scores(accuracy))),
    "top5": NamedMetric("top-5 accuracy", Metric(top5_accuracy)),
    "macro_f1": NamedMetric("macro F1", Metric(macro_f1)),
    "balanced_accuracy": NamedMetric("balanced accuracy", Metric(balanced_accuracy)),
    "auroc": NamedMetric("AUROC", Metric(auroc)),
    "log_loss": NamedMetric("log loss", Metric(log_loss, "down")),
    "calibration_error": NamedMetric("calibration error", Metric(calibration_error, "down")),
}
"""The metrics of classification, by their names in a config."""
