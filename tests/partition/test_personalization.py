"""What goes with a partition: dropout on personal layers, and personal parts that differ by device."""

import pytest
import torch
from torch import nn

from partita import Partition, Personalization, Regularization


def dropping(partition: Partition, dropout: float) -> Personalization:
    return Personalization(partition, regularization=Regularization(dropout=dropout))


def test_dropout_is_on_what_goes_into_personal_layers_and_nothing_else() -> None:
    model = nn.Sequential(nn.Linear(1, 200, bias=False), nn.Linear(200, 200, bias=False))
    for layer in model:
        nn.init.ones_(layer.weight) if layer is model[0] else nn.init.eye_(layer.weight)
    partition = dropping(Partition(model, personal="1.*"), 0.25)
    prepared = partition.prepare(model)
    inputs = torch.ones(1, 1)

    torch.manual_seed(0)
    dropped = prepared.train()(inputs)

    # Into the personal layer go 200 ones; a quarter become 0, the others 4/3.
    assert dropped.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=0.1)
    assert torch.equal(prepared[0](inputs), torch.ones(1, 200))
    assert torch.equal(prepared.eval()(inputs), torch.ones(1, 200))


def test_dropout_into_attention_keeps_its_three_inputs_one() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True), nn.Linear(8, 1))
    seen = []
    partition = dropping(Partition(model, personal="0.*"), 0.5)
    prepared = partition.prepare(model)
    prepared[0].self_attn.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))

    prepared.train()(torch.randn(2, 3, 8))

    query, key, value = seen[0]
    assert query is key is value
    assert (query == 0).any()


def test_dropout_leaves_whole_numbers_alone() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 1))
    prepared = dropping(Partition(model, personal="0.*"), 0.9).prepare(model)

    words = torch.tensor([1, 2, 3])

    assert torch.equal(prepared.train()[0](words), prepared[0].weight[words])


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_dropout_is_a_probability(dropout: float) -> None:
    with pytest.raises(ValueError, match="`dropout` must be at least 0 and below 1"):
        Regularization(dropout=dropout)


def test_only_personal_parts_may_differ_by_device() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    plain = Partition(model, personal="1.*")
    other = Personalization(Partition(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), personal="1.*"))
    own = Personalization(plain, by_device=lambda _: other)

    with pytest.raises(ValueError, match="The shared part of device 'a' must have the same names and shapes"):
        own.on("a")
    assert Personalization(plain).on("a").partition.names("personal") == ("1.weight", "1.bias")


def test_devices_alike_have_one_partition_even_if_it_is_made_anew() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    plain = Partition(model, personal="1.*")
    own = Personalization(plain, by_device=lambda _: Personalization(Partition(model, personal="1.*")))

    assert own.on("a") is own.on("b")
    assert [(device, count) for _, device, count in own.kinds(["a", "b", "c"])] == [("a", 3)]
    with pytest.raises(
        TypeError, match="`by_device` must return a Personalization, got None for device 'a'."
    ):
        Personalization(plain, by_device=lambda _: None).on("a")


def test_dropout_stays_out_of_a_shared_layer_that_was_tied_to_a_personal_one() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(50, 50)
            self.b = self.a

    prepared = dropping(Partition(Twice(), personal="b.*", untie=True), 0.5).prepare(Twice()).train()

    ones = torch.ones(1, 50)
    assert torch.equal(prepared.a(ones), prepared.a(ones))
    assert not torch.equal(prepared.b(ones), prepared.b(ones))


@pytest.mark.parametrize("personal", ["1.bias", "0.self_attn.out_proj.*"])
def test_dropout_without_a_layer_to_drop_into_is_an_error(personal: str) -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 4), nn.Linear(4, 1))

    with pytest.raises(ValueError, match="`dropout` needs a personal layer"):
        dropping(Partition(model, personal=personal), 0.5)
