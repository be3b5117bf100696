"""Ties: a model that moves to another device keeps those that it can have there."""

import pytest
import torch
from torch import nn

from partita.errors import ConfigError
from partita.partition.ties import move
from small import word_task

META = torch.device("meta")


def test_one_tensor_under_two_names_is_one_tensor_after_a_move() -> None:
    model = word_task().model()
    model.register_buffer("a", torch.ones(2))
    model.blocks.register_buffer("b", model.a)

    move(model, META)

    assert model.head.weight is model.embedding.weight
    assert isinstance(model.head.weight, nn.Parameter)
    assert model.a is model.blocks.b
    assert {tensor.device for tensor in model.state_dict().values()} == {META}


def test_two_tensors_in_one_memory_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = nn.Parameter(model[0].weight.data.view(2, 2))

    with pytest.raises(ConfigError, match=r"`0.weight` and `1.weight` are two tensors in the same memory"):
        move(model, META)
