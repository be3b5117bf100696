"""Examples of a split, given in several ways."""

import pytest
import torch

from partita.data.examples import TensorExamples, examples_of


def test_a_split_may_be_a_list_or_a_dataset_or_examples() -> None:
    items = [(torch.tensor([float(n)]), n) for n in range(3)]
    for split in (items, torch.utils.data.TensorDataset(torch.arange(3.0).view(-1, 1), torch.arange(3))):
        inputs, targets = examples_of(split).batch_at(torch.tensor([2, 0]))
        assert inputs.tolist() == [[2.0], [0.0]]
        assert targets.tolist() == [2, 0]
    examples = TensorExamples((torch.zeros(3),))
    assert examples_of(examples) is examples


def test_an_invalid_split_is_refused() -> None:
    with pytest.raises(TypeError, match="got int"):
        examples_of(3)
    with pytest.raises(ValueError, match=r"the same number of rows, got \[2, 3\]"):
        examples_of((torch.zeros(2), torch.zeros(3)))
