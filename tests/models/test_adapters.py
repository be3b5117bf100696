"""Adapters: where they go, and what becomes personal."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from partita import Adapters, Partition, adapters
from partita.models.adapters import BottleneckAdapter, ResidualAdapter, insert_adapters


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2))


def test_an_adapter_is_a_bottleneck_with_a_skip() -> None:
    adapter = BottleneckAdapter(2, width=1)
    with torch.no_grad():
        adapter.down.weight.copy_(torch.tensor([[1.0, -1.0]]))
        adapter.up.weight.copy_(torch.tensor([[10.0], [20.0]]))

    # down: 3 - 1 = 2; up: (20, 40); and the skip.
    assert adapter(torch.tensor([3.0, 1.0])).tolist() == [23.0, 41.0]
    # ReLU: 1 - 3 becomes 0.
    assert adapter(torch.tensor([1.0, 3.0])).tolist() == [1.0, 3.0]


def test_a_residual_adapter_is_a_norm_and_a_convolution_with_a_skip() -> None:
    adapter = ResidualAdapter(2)
    with torch.no_grad():
        adapter.conv.weight.copy_(torch.tensor([[0.0, 2.0], [0.0, 0.0]]).view(2, 2, 1, 1))
    features = torch.tensor([1.0, 3.0]).view(1, 2, 1, 1)

    # Normed to (-1, 1), of which the first channel takes twice the second.
    assert adapter(features).flatten().tolist() == pytest.approx([3.0, 3.0], abs=1e-4)


def test_a_narrow_residual_adapter_goes_through_few_channels() -> None:
    adapter = ResidualAdapter(16, width=3)

    assert sum(parameter.numel() for parameter in adapter.parameters()) == 2 * 16 + 16 * 3 + 3 * 16
    assert adapter(torch.zeros(1, 16, 2, 2)).shape == (1, 16, 2, 2)


def test_adapters_are_personal_together_with_what_is_named() -> None:
    partition = adapters(net(), Adapters(after=["0"], together_with=["1.*"]), width=2)

    assert partition.count("personal") == 6 * 2 + 2 + 2 * 6 + 6 + 2 * 6
    assert partition.names("shared") == ("0.weight", "0.bias", "3.weight", "3.bias")


def test_a_partition_with_adapters_takes_what_any_other_does() -> None:
    partition = adapters(net(), Adapters(after=["0"]), frozen=["0.weight"], dropout=0.5)

    assert partition.names("frozen") == ("0.weight",)
    assert partition.dropout == 0.5


def test_making_a_partition_draws_no_random_numbers_of_the_callers() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    model = nn.Identity()
    model.layer = nn.Linear(2, 2, device="meta")
    torch.manual_seed(3)

    Partition(
        nn.Linear(2, 2, device="meta").to_empty(device="cpu"), prepare=_with_adapter, personal="adapter.*"
    )

    assert torch.equal(torch.rand(1), expected)


def _with_adapter(model: nn.Module) -> nn.Module:
    return insert_adapters(model, where=Adapters(after=[""]))


@pytest.mark.parametrize(
    ("after", "width", "error"),
    [
        ("7", 0, "No module of Sequential to adapt matches '7'."),
        ("1", 0, "An adapter can go after a Linear, a MultiheadAttention or a Conv2d, got `1`, a LayerNorm."),
        ("0", -1, "The width of an adapter must be 0"),
    ],
)
def test_where_no_adapter_can_go_is_an_error(after: str, width: int, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        adapters(net(), Adapters(after=[after]), width=width)


def test_a_second_adapter_in_the_same_place_is_an_error() -> None:
    model = insert_adapters(net(), where=Adapters(after=["0"]))

    with pytest.raises(ValueError, match="`0` has an adapter already."):
        insert_adapters(model, where=Adapters(after=["0"]))


def test_devices_that_are_alike_have_one_partition_and_others_their_own() -> None:
    width: Callable[[str], int] = {"a": 1, "b": 3, "c": 1}.__getitem__
    partition = adapters(net(), Adapters(after=["0"]), width=width)

    assert partition.on("a") is partition.on("c")
    assert partition.on("a").count("personal") == 6 * 1 + 1 + 1 * 6 + 6
    assert partition.on("b").count("personal") == 6 * 3 + 3 + 3 * 6 + 6
    assert partition.on("b").shapes("shared") == partition.shapes("shared")
