"""The split-input model."""

import pytest
import torch
from torch import nn

from partita import Partition, SplitInput
from partita.models.parts import named_partition


def test_shared_and_personal_features_are_separate_until_the_top() -> None:
    model = SplitInput(nn.Linear(2, 3), nn.Linear(1, 2), nn.Linear(5, 1), shared_features=2)
    inputs = torch.tensor([[1.0, 2.0, 3.0]])

    output = model(inputs)

    both = torch.cat([model.shared(inputs[:, :2]), model.personal(inputs[:, 2:])], dim=1)
    assert torch.equal(output, model.top(both))
    assert Partition(model, personal="personal.*").count("personal") == 1 * 2 + 2
    assert named_partition(model, "input").partition.names("personal") == ("personal.weight", "personal.bias")


def test_there_must_be_shared_and_personal_features() -> None:
    model = SplitInput(nn.Linear(3, 1), nn.Linear(1, 1), nn.Linear(2, 1), shared_features=3)

    with pytest.raises(
        ValueError, match="`shared_features` must be between 0 and 3, the number of features, got 3."
    ):
        model(torch.zeros(1, 3))
