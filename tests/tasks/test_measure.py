"""Measuring a model on a device: the loss and the metrics."""

import pytest
import torch
from torch import Tensor, nn

from partita import Metric, Undefined
from partita.data.examples import TensorExamples
from partita.tasks.measure import measure
from small import affine_task, negative_error

DATA = TensorExamples((torch.arange(600.0).view(-1, 1), torch.arange(600.0)))


class Identity(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.squeeze(1)


def test_a_metric_sees_all_predictions_at_once() -> None:
    seen: list[int] = []

    def median(predictions: Tensor, targets: Tensor) -> Tensor:
        seen.append(len(predictions))
        return predictions.median()

    measures = measure(affine_task(metrics={"median": median}), Identity(), DATA)

    assert seen == [600]
    assert measures["median"] == 299.0
    assert (measures["examples"], measures["weight"], measures["loss"]) == (600, 600, 0.0)
    assert measures["reason"] is None


def test_the_loss_is_the_mean_over_examples_not_over_batches() -> None:
    # Batches of 256, 256 and 88: the loss of a batch is its mean, so that of 0, ..., 599 is sum(i) / 600.
    task = affine_task(loss=lambda model, batch: batch[1].mean())

    assert measure(task, Identity(), DATA)["loss"] == pytest.approx(299.5)


def raise_undefined(predictions: Tensor, targets: Tensor) -> float:
    raise Undefined("one class only")


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        (lambda p, t: float("nan"), "`m` is nan"),
        (lambda p, t: None, "`m` has no value here"),
        (raise_undefined, "`m`: one class only"),
    ],
)
def test_an_undefined_metric_is_none_with_a_reason(metric: object, reason: str) -> None:
    measures = measure(affine_task(metrics={"m": metric}), Identity(), DATA)

    assert measures["m"] is None
    assert measures["reason"] == reason


def test_predictions_may_be_lists() -> None:
    task = affine_task(
        predict=lambda model, batch: (["a"] * len(batch[0]), ["b"] * len(batch[0])),
        metrics={"count": Metric(lambda predictions, targets: len(predictions + targets))},
    )

    assert measure(task, Identity(), DATA)["count"] == 1200


def test_a_model_is_measured_in_eval_mode_without_gradients_of_its_parameters() -> None:
    class Checking(Identity):
        def forward(self, inputs: Tensor) -> Tensor:
            assert not self.training
            assert not self.weight.requires_grad
            return super().forward(inputs)

    model = Checking().train()
    model.weight = nn.Parameter(torch.ones(1))

    measure(affine_task(metrics={"m": negative_error}), model, DATA)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_model_whose_loss_is_not_finite_has_no_metric_whatever_it_predicts(broken: float) -> None:
    # Classes and tokens are whole numbers even where the scores they come from are not finite.
    task = affine_task(
        metrics={"accuracy": lambda predictions, targets: (predictions == targets).float().mean()},
        loss=lambda model, batch: torch.tensor(broken),
        predict=lambda model, batch: (batch[1], batch[1]),
    )

    measures = measure(task, Identity(), DATA)

    assert measures["loss"] is measures["accuracy"] is None
    assert measures["reason"] == f"the loss is {broken}"
