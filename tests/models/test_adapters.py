"""Adapters: where they go, and what becomes personal."""

from collections.abc import Callable

import numpy
import pytest
import torch
from torch import nn

from partita import Adapters, Regularization, adapters
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
    partition = adapters(net(), Adapters(after=["0"], together_with=["1.*"]), width=2).partition

    assert partition.count("personal") == 6 * 2 + 2 + 2 * 6 + 6 + 2 * 6
    assert partition.names("shared") == ("0.weight", "0.bias", "3.weight", "3.bias")


def test_a_partition_with_adapters_takes_what_any_other_does() -> None:
    partition = adapters(
        net(), Adapters(after=["0"]), frozen=["0.weight"], regularization=Regularization(dropout=0.5)
    )

    assert partition.partition.names("frozen") == ("0.weight",)
    assert partition.regularization.dropout == 0.5


def test_making_a_partition_draws_no_random_numbers_of_the_callers() -> None:
    model = net()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)

    adapters(model, Adapters(after=["0"]))

    assert torch.equal(torch.rand(1), expected)


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

    with pytest.raises(ValueError, match="`0` already has an adapter."):
        insert_adapters(model, where=Adapters(after=["0"]))


def test_devices_that_are_alike_have_one_partition_and_others_their_own() -> None:
    width: Callable[[str], int] = {"a": 1, "b": 3, "c": 1}.__getitem__
    partition = adapters(net(), Adapters(after=["0"]), width=width)

    assert partition.on("a") is partition.on("c")
    assert partition.on("a").partition.count("personal") == 6 * 1 + 1 + 1 * 6 + 6
    assert partition.on("b").partition.count("personal") == 6 * 3 + 3 + 3 * 6 + 6
    assert partition.on("b").partition.shapes("shared") == partition.partition.shapes("shared")


@pytest.mark.parametrize(("dim", "width"), [(256, 16), (768, 64), (2048, 512), (4096, 16)])
def test_a_new_adapter_is_small_however_wide_it_is(dim: int, width: int) -> None:
    torch.manual_seed(0)
    features = torch.randn(20, dim)

    change = BottleneckAdapter(dim, width=width)(features) - features

    assert change.norm() / features.norm() < 0.01


def test_personal_is_what_was_inserted_and_not_what_has_its_name() -> None:
    model = nn.ModuleDict({"body": nn.ModuleDict({"adapter": nn.Linear(2, 2)}), "head": nn.Linear(2, 2)})

    partition = adapters(model, Adapters(after="head"), width=1).partition

    assert all(name.startswith("head.adapter.") for name in partition.names("personal"))
    assert "body.adapter.weight" in partition.names("shared")
    root = adapters(nn.Linear(2, 2), Adapters(after=""), width=1).partition
    assert root.count("personal") == 2 + 1 + 2 + 2


def test_layers_that_attention_never_calls_take_no_adapter() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 8)

    with pytest.raises(ValueError, match="`self_attn.out_proj` is never called .*: adapt `self_attn`."):
        adapters(model, Adapters(after="*out_proj"))


def test_an_adapter_has_the_precision_of_its_model() -> None:
    model = net().double()
    adapted = adapters(model, Adapters(after=["0"])).prepare(model)

    assert adapted(torch.zeros(1, 4, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(("width", "error"), [(2.5, "got 2.5"), (True, "got True"), ("4", "got '4'")])
def test_a_width_is_a_whole_number_or_a_function(width: object, error: str) -> None:
    with pytest.raises(TypeError, match=f"`width` must be a whole number or a function .*, {error}"):
        adapters(net(), Adapters(after=["0"]), width=width)


@pytest.mark.parametrize("width", [0, -3, "4", 2.0, True])
def test_a_width_that_is_none_is_told_with_its_device(width: object) -> None:
    partition = adapters(net(), Adapters(after=["0"]), width=lambda _: width)

    with pytest.raises(ValueError, match=f"at least 1, got {width!r} for device 'a'."):
        partition.on("a")


def test_a_width_may_come_from_a_table() -> None:
    partition = adapters(net(), Adapters(after=["0"]), width=lambda _: numpy.int64(2))

    assert partition.on("a").partition.shapes("personal")["0.adapter.down.weight"] == (2, 6)
