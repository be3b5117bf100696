"""The exact mean, and the arithmetic of named tensors."""

import itertools

import numpy as np
import pytest
import torch

from partita.params import WeightedMean, change_of, copy_into, digest_of, from_bytes, pull, to_bytes
from small import same_bits


def changes(count: int = 5) -> list[tuple[str, dict[str, torch.Tensor], int]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (
            f"d{i}",
            {"w": torch.randn(3, 4, generator=generator), "b": torch.randn(2, generator=generator) * 10**-i},
            1 + 17 * i,
        )
        for i in range(count)
    ]


def mean_of(parts: list[tuple[str, dict[str, torch.Tensor], int]]) -> WeightedMean:
    mean = WeightedMean(parts[0][1], cohort=len(parts))
    for part in parts:
        mean.add(*part)
    return mean


def test_mean_has_the_same_bits_in_any_order() -> None:
    parts = changes(4)
    expected = mean_of(parts).value()

    for order in itertools.permutations(parts):
        assert same_bits(mean_of(list(order)).value(), expected)


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_mean_has_the_same_bits_in_any_grouping(cut: int) -> None:
    parts = changes()
    left, right = mean_of(parts[:cut]), mean_of(parts[cut:])

    right.merge(left)

    assert same_bits(right.value(), mean_of(parts).value())


def test_mean_is_the_one_that_numpy_computes() -> None:
    parts = changes()
    total = sum(
        weight * np.rint(change["w"].numpy().astype(np.float64) * 2.0**36).astype(np.int64)
        for _, change, weight in parts
    )
    weights = sum(weight for *_, weight in parts)

    value = mean_of(parts).value()["w"].numpy()

    expected = (np.asarray(total).astype(np.float64) / (weights * 2.0**36)).astype(np.float32)
    np.testing.assert_array_equal(value, expected)
    plain = sum(w * c["w"].double() for _, c, w in parts) / weights
    assert np.abs(value - np.asarray(plain)).max() < 1e-6


def test_mean_spans_many_chunks() -> None:
    generator = torch.Generator().manual_seed(0)
    big = {"w": torch.randn(200_001, generator=generator)}
    mean = WeightedMean(big, cohort=1)

    mean.add("a", big, weight=3)

    assert torch.equal(mean.value()["w"], (big["w"].double() * 2**36).round().div(2**36).float())


def test_whole_numbers_come_from_the_lowest_device() -> None:
    like = {"seen": torch.tensor(0)}
    mean = WeightedMean(like, cohort=3)

    for device, seen in [("b", 2), ("a", 1), ("c", 3)]:
        mean.add(device, {"seen": torch.tensor(seen)}, weight=1)
    other = WeightedMean(like, cohort=3)
    other.merge(mean)

    assert mean.value()["seen"].item() == other.value()["seen"].item() == 1


@pytest.mark.parametrize(
    ("change", "weight", "words"),
    [
        ({"u": torch.tensor([1.0, float("nan")])}, 1, "'d7'.*finite"),
        ({"u": torch.tensor([1.0, float("inf")])}, 1, "'d7'.*finite"),
        ({"u": torch.tensor([1.0, -3e7])}, 1, "'d7'.*at most"),
        ({"u": torch.tensor([1.0, 3.0])}, 2**25, "'d7'.*at most"),
        ({"v": torch.tensor([1.0, 2.0])}, 1, r"missing \['u'\], unknown \['v'\]"),
        ({"u": torch.tensor([1.0])}, 1, r"shape \(2,\), got \(1,\)"),
        ({"u": torch.tensor([1.0, 2.0])}, 0, "weight.*at least 1"),
    ],
)
def test_a_change_that_cannot_be_counted_is_refused_and_leaves_the_mean(
    change: dict[str, torch.Tensor], weight: int, words: str
) -> None:
    # With a cohort of 4 and weight 1, the limit is 2^62 / 4 / 2^36 = 2^24, about 1.7e7.
    mean = WeightedMean({"u": torch.zeros(2)}, cohort=4)
    mean.add("d1", {"u": torch.tensor([1.0, 2.0])}, weight=2)

    with pytest.raises(ValueError, match=words):
        mean.add("d7", change, weight)

    assert mean.value()["u"].tolist() == [1.0, 2.0]


def test_mean_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="undefined"):
        WeightedMean({"u": torch.zeros(1)}, cohort=1).value()


def test_mean_keeps_the_type_of_the_shared_part() -> None:
    half = {"u": torch.tensor([0.5, -2.0], dtype=torch.bfloat16)}
    mean = WeightedMean(half, cohort=1)

    mean.add("a", half, weight=1)

    assert torch.equal(mean.value()["u"], half["u"])


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
