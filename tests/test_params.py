"""Named tensors: copies, changes and bytes."""

import pytest
import torch

from partita.params import change_of, copy_into, digest_of, from_bytes, pull, to_bytes
from small import same_bits


def test_copying_never_aliases() -> None:
    source, target = {"u": torch.tensor([1.0])}, {"u": torch.tensor([0.0])}

    copy_into(target, source)
    source["u"].fill_(9)

    assert target["u"].item() == 1.0


def test_copying_other_names_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"missing \['u'\], unknown \['w'\]"):
        copy_into({"u": torch.zeros(1)}, {"w": torch.zeros(1)})


def test_change_of_flags_and_counts_is_whole() -> None:
    before = {"flag": torch.tensor(True), "count": torch.tensor(3), "u": torch.tensor(1.0)}
    after = {"flag": torch.tensor(False), "count": torch.tensor(7), "u": torch.tensor(1.5)}

    change = change_of(after, before)

    assert [change[name].item() for name in ("flag", "count", "u")] == [-1, 4, 0.5]


def test_equal_tensors_give_equal_bytes_that_read_back() -> None:
    params = {"b": torch.arange(3.0), "a": torch.zeros(0), "c": torch.tensor(7)}

    content = to_bytes(params, device="form 3")

    assert content == to_bytes({name: params[name].clone() for name in params}, device="form 3")
    assert same_bits(from_bytes(content), params)
    assert digest_of(params) != digest_of(params | {"c": torch.tensor(8)})


def test_a_pull_is_half_its_strength_times_the_squared_distance_and_its_gradient_the_way() -> None:
    own = {"a": torch.tensor([3.0, -1.0], requires_grad=True), "b": torch.tensor([[2.0]], requires_grad=True)}
    toward = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([[2.0]]), "other": torch.tensor(9.0)}

    value = pull(own, toward, strength=0.5)
    ways = torch.autograd.grad(value, list(own.values()))

    assert value.item() == 0.25 * (4 + 1 + 0)
    assert [way.tolist() for way in ways] == [[1.0, -0.5], [[0.0]]]
    assert pull(own, None, strength=0.5).item() == 0.25 * (9 + 1 + 4)
