"""Sums and mixtures of a shared and a personal model."""

import pytest
import torch
from torch import nn

from partita import Additive, Mixture
from partita.models.parts import named_partition


class Constant(nn.Module):
    """Returns the same values for any input."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor([values]))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.values.expand(len(inputs), -1)


def test_an_additive_model_returns_the_sum() -> None:
    model = Additive(Constant(1.0, 2.0), Constant(10.0, 20.0))

    assert model(torch.zeros(1, 1)).tolist() == [[11.0, 22.0]]
    assert named_partition(model, "additive").partition.names("personal") == ("personal.values",)


def test_each_part_of_an_additive_model_fits_the_residual_of_the_other() -> None:
    # d/dv (y - u - v)^2 = -2 (y - u - v): with y = 5, u = 1, v = 2 it is -4.
    model = Additive(Constant(1.0), Constant(2.0))

    loss = (5.0 - model(torch.zeros(1, 1))).square().sum()
    gradients = torch.autograd.grad(loss, [model.personal.values, model.shared.values])

    assert [gradient.item() for gradient in gradients] == [-4.0, -4.0]


def test_a_mixture_is_the_convex_combination_of_two_distributions() -> None:
    # p = (1/4, 3/4) and p_i = (1/2, 1/2) with theta = 0.8: (0.2 + 0.1, 0.6 + 0.1)
    model = Mixture(Constant(0.0, 1.0986123), Constant(2.0, 2.0), theta=0.8)

    probabilities = model(torch.zeros(1, 1)).exp()

    assert probabilities[0].tolist() == pytest.approx([0.3, 0.7])
    loss = nn.functional.cross_entropy(model(torch.zeros(1, 1)), torch.tensor([1]))
    assert loss.exp().item() == pytest.approx(1 / 0.7)


def test_the_weight_of_a_mixture_is_learned_and_personal() -> None:
    # d/d theta of -log(theta 3/4 + (1 - theta) 1/2) at 0.8 is -(1/4)/0.7, times theta (1 - theta) for the logit.
    model = Mixture(Constant(0.0, 1.0986123), Constant(2.0, 2.0), theta=0.8)

    loss = nn.functional.cross_entropy(model(torch.zeros(1, 1)), torch.tensor([1]))
    (gradient,) = torch.autograd.grad(loss, model.balance)

    assert gradient.item() == pytest.approx(-0.25 / 0.7 * 0.8 * 0.2, rel=1e-5)
    assert named_partition(model, "additive").partition.names("personal") == ("balance", "personal.values")
    assert model.theta.item() == pytest.approx(0.8)


def test_a_mixture_of_confident_models_is_finite() -> None:
    model = Mixture(Constant(0.0, 1e4), Constant(1e4, 0.0), theta=1e-6)

    log_probabilities = model(torch.zeros(1, 1))

    assert torch.isfinite(log_probabilities).all()
    assert log_probabilities[0].tolist() == pytest.approx([0.0, -13.815511], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("theta", [0.0, 1.0, float("nan")])
def test_theta_must_be_between_0_and_1(theta: float) -> None:
    with pytest.raises(ValueError, match="`theta` must be between 0 and 1"):
        Mixture(Constant(0.0), Constant(0.0), theta=theta)
