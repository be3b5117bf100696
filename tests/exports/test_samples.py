"""Whether two outputs of models are the same."""

import math

import pytest
import torch

from partita.exports.samples import largest_difference


@pytest.mark.parametrize("other", [-math.inf, math.nan, 1.0])
def test_values_that_are_not_finite_must_be_the_same(other: float) -> None:
    output = torch.tensor([1.0, math.inf])

    assert largest_difference([output], [torch.tensor([1.0, other])]) == math.inf
    assert largest_difference([output], [torch.tensor([1.5, math.inf])]) == 0.5


def test_an_output_that_is_no_number_is_the_same_as_itself() -> None:
    assert largest_difference([torch.tensor([math.nan, 4.0])], [torch.tensor([math.nan, 5.0])]) == 0.25


def test_outputs_beside_the_scores_may_have_any_type() -> None:
    scores, mask = torch.tensor([1.0, 2.0]), torch.tensor([True, False])

    assert largest_difference([scores, mask], [scores + 1.0, mask]) == 0.5
    assert largest_difference([mask], [~mask]) == 1.0
