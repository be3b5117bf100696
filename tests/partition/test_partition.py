"""Which tensors belong to which part, and that a step on one leaves the others alone."""

import pytest
import torch
from torch import Tensor, nn

from partita.params import cloned
from partita.partition import Partition, Parts
from partita.partition.selection import PARTS, REST
from partita.partition.tensors import tensors_of
from small import Normed, same_bits


class Tied(nn.Module):
    """An embedding whose weight is also the output layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embedding.weight


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.GroupNorm(1, 3), nn.Linear(3, 2))


def test_one_pattern_is_personal_and_the_rest_shared() -> None:
    partition = Partition(small(), personal="2.*")

    assert partition.names("personal") == ("2.weight", "2.bias")
    assert partition.names("shared") == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert partition.names("frozen") == ()
    assert [partition.count(part) for part in PARTS] == [21, 8, 0]


def test_a_type_and_a_predicate_select_too() -> None:
    def is_bias(name: str, tensor: Tensor) -> bool:
        return tensor.dim() == 1 and name.startswith("0")

    partition = Partition(small(), personal=[nn.GroupNorm, is_bias], frozen="2.weight")

    assert partition.names("personal") == ("0.bias", "1.weight", "1.bias")
    assert partition.names("frozen") == ("2.weight",)


def test_any_one_part_can_be_the_rest() -> None:
    partition = Partition(small(), personal=REST, shared="0.*", frozen="1.*")

    assert partition.names("personal") == ("2.weight", "2.bias")


def test_split_and_combine_undo_each_other() -> None:
    model = Normed()
    partition = Partition(model, personal="head.*", frozen="body.0.*")
    state = tensors_of(model)

    parts = partition.split(state)

    assert partition.combine(parts) == state
    assert not set(parts.shared) & set(parts.personal)
    assert list(partition.combine(parts)) == list(state)


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"personal": "hed.*"}, "No tensor of Normed matches 'hed\\.\\*'. Near names: head\\.\\*"),
        ({"personal": nn.Conv2d}, "No tensor of Normed is selected by .*Conv2d"),
        (
            {"personal": "head.*", "frozen": "head.0.*"},
            "`head.0.weight` is selected as personal and as frozen",
        ),
        ({"personal": "head.*", "shared": "body.0.*"}, "No part selects `body.1.weight`.*rest"),
        ({"personal": REST, "shared": REST}, "Only one part can be the rest, got shared and personal"),
        ({"personal": "*"}, "leaves no tensor of Normed shared.*`full`"),
    ],
)
def test_a_bad_claim_says_what_would_be_right(claims: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Partition(Normed(), **claims)


def test_tied_names_in_one_part_are_one_tensor() -> None:
    partition = Partition(Tied(), personal="head.bias")

    assert partition.names("shared") == ("embedding.weight",)
    assert partition.count("shared") == 15


def test_tied_names_across_parts_are_an_error_that_names_both() -> None:
    with pytest.raises(
        ValueError, match=r"`embedding.weight` \(shared\) and `head.weight` \(personal\).*untie"
    ):
        Partition(Tied(), personal="head.*")


def test_a_view_of_shared_memory_is_a_tie_as_well() -> None:
    model = nn.Module()
    model.body = nn.Linear(3, 5)
    model.head = nn.Parameter(model.body.weight.data.t())

    with pytest.raises(ValueError, match="`head`.*`body.weight`.*one tensor"):
        Partition(model, personal="head")


def test_untie_gives_each_its_own_copy() -> None:
    partition = Partition(Tied(), personal="head.*", untie=True)
    model = partition.prepare(Tied())

    parts = partition.of(model)

    assert set(parts.personal) == {"head.weight", "head.bias"}
    assert torch.equal(parts.personal["head.weight"], parts.shared["embedding.weight"])
    parts.personal["head.weight"].data.fill_(1)
    assert not torch.equal(parts.personal["head.weight"], parts.shared["embedding.weight"])


class Twice(nn.Module):
    """One module in two places, and a third name for its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = self.a
        self.c = nn.Linear(3, 3, bias=False)
        self.c.weight = self.a.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.c(self.b(self.a(inputs)))


def test_untie_takes_apart_a_module_that_stands_in_two_places() -> None:
    partition = Partition(Twice(), personal="b.*", untie=True)
    model = partition.prepare(Twice())

    parts = partition.of(model)
    parts.personal["b.weight"].data.fill_(1)
    parts.personal["b.bias"].data.fill_(1)

    assert model.b is not model.a
    assert not (model.a.weight == 1).any()
    assert not (model.a.bias == 1).any()
    assert model.c.weight is model.a.weight
    assert set(parts.shared) == {"a.weight", "a.bias"}


def test_untie_keeps_ties_inside_each_part() -> None:
    partition = Partition(Twice(), personal=["b.weight", "c.*"], untie=True)
    model = partition.prepare(Twice())

    assert partition.names("personal") == ("b.weight",)
    assert partition.names("shared") == ("a.weight", "a.bias")
    assert model.c.weight is model.b.weight
    assert model.b.bias is model.a.bias
    assert model.b.weight is not model.a.weight


def test_untie_reaches_into_a_container_that_stands_in_two_places() -> None:
    def make() -> nn.Module:
        model = nn.Module()
        model.first = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
        model.second = model.first
        return model

    partition = Partition(make(), personal="second.*", untie=True)
    model = partition.prepare(make())

    parts = partition.of(model)
    for tensor in parts.personal.values():
        tensor.data.fill_(7)
    assert set(parts.personal) == {f"second.{n}" for n in ("0.weight", "0.bias", "1.0.weight", "1.0.bias")}
    assert not any((tensor == 7).any() for tensor in parts.shared.values())


def test_untie_keeps_tied_buffers_tied_inside_a_part() -> None:
    def make() -> nn.Module:
        model = nn.Module()
        model.weight = nn.Parameter(torch.zeros(1))
        for name in ("x", "y", "z"):
            model.register_buffer(name, model.x if name != "x" else torch.ones(2))
        return model

    partition = Partition(make(), personal=["y", "z"], untie=True)
    model = partition.prepare(make())

    assert partition.names("personal") == ("y",)
    assert model.z is model.y
    assert model.y is not model.x


def test_a_type_selects_a_module_under_all_its_names() -> None:
    model = nn.Module()
    model.body = nn.Linear(2, 2)
    model.norm = nn.LayerNorm(2)
    model.again = model.norm

    assert Partition(model, personal=nn.LayerNorm).names("personal") == ("norm.weight", "norm.bias")


def test_a_partition_of_another_model_does_not_fit() -> None:
    with pytest.raises(ValueError, match="lacks `body.0.weight`"):
        Partition(Normed(), personal="head.*").prepare(small())


def test_a_module_without_a_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="`weight` has no shape yet"):
        Partition(nn.LazyLinear(3))


def test_only_a_module_can_be_split() -> None:
    with pytest.raises(TypeError, match="must be a module, got"):
        Partition(Normed)


def test_a_partition_shows_its_counts() -> None:
    assert repr(Partition(small(), personal="2.*")) == "Partition(shared=21, personal=8, frozen=0)"


def test_the_model_that_names_are_read_from_stays_as_it_is() -> None:
    model = Tied()

    Partition(model, personal="head.*", untie=True)
    Partition(model, personal="1.*", prepare=lambda plain: nn.Sequential(plain, nn.Linear(1, 1)))

    assert model.head.weight is model.embedding.weight


def test_prepare_adds_to_the_model() -> None:
    def add_head(model: nn.Module) -> nn.Module:
        model.add_module("extra", nn.Linear(2, 2))
        return model

    partition = Partition(small(), personal="extra.*", prepare=add_head)

    assert partition.names("personal") == ("extra.weight", "extra.bias")
    assert partition.of(partition.prepare(small())).personal.keys() == {"extra.weight", "extra.bias"}


@pytest.mark.parametrize("moving", [("personal",), ("shared",), ("personal", "shared")])
def test_what_is_held_still_keeps_every_bit_buffers_included(moving: tuple) -> None:
    model = Normed()
    partition = Partition(model, personal="head.*", frozen="body.0.*")
    before = Parts(*(cloned(getattr(partition.of(model), part)) for part in PARTS))
    inputs = torch.randn(8, 3)

    partition.let_move(model, *moving)
    model(inputs).square().mean().backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.data.add_(parameter.grad, alpha=-0.1)

    after = partition.of(model)
    for part in PARTS:
        assert same_bits(getattr(before, part), getattr(after, part)) == (part not in moving)


def test_buffers_of_a_moving_part_do_move() -> None:
    model = Normed()
    partition = Partition(model, personal="head.*")

    partition.let_move(model, "personal")
    model(torch.randn(8, 3))

    assert model.head[1].num_batches_tracked.item() == 1
    assert model.body[1].num_batches_tracked.item() == 0


def test_a_parameter_that_its_model_has_fixed_stays_fixed() -> None:
    model = small()
    model[0].weight.requires_grad_(False)
    partition = Partition(model, personal="2.*")

    partition.let_move(model, "shared")

    assert not model[0].weight.requires_grad
    assert model[0].bias.requires_grad


def test_dropout_stays_active_in_a_step() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.BatchNorm1d(2), nn.Linear(2, 1))
    partition = Partition(model, personal="3.*")

    partition.let_move(model, "personal")

    assert model[1].training
    assert not model[2].training


def test_complex_tensors_are_refused() -> None:
    model = nn.Module()
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))

    with pytest.raises(ValueError, match="`phase` is complex"):
        Partition(model)
