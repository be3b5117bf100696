"""The exact weighted mean: its bits, its precision, and what it refuses."""

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest
import torch

from partita.mean import WeightedMean
from partita.params import change_of
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
    mean = WeightedMean(parts[0][1])
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

    right.merge(left.totals())

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
    mean = WeightedMean(big)

    mean.add("a", big, weight=3)

    assert torch.equal(mean.value()["w"], (big["w"].double() * 2**36).round().div(2**36).float())


@pytest.mark.parametrize("weight", [3, 2**60])  # The second takes several limbs.
def test_a_mean_over_many_chunks_has_the_bits_of_the_means_of_its_pieces(weight: int) -> None:
    generator = torch.Generator().manual_seed(0)
    changes = [torch.randn(300_001, generator=generator) for _ in range(2)]

    whole = mean_of([(str(n), {"w": change}, weight + n) for n, change in enumerate(changes)])

    pieces = zip(*(change.split(50_000) for change in changes), strict=True)
    means = [mean_of([(str(n), {"w": w}, weight + n) for n, w in enumerate(some)]) for some in pieces]
    assert torch.equal(whole.value()["w"], torch.cat([mean.value()["w"] for mean in means]))


def test_adding_to_a_mean_changes_none_that_was_merged_into_it() -> None:
    (first, *rest), like = changes(), changes()[0][1]
    merged, mean = mean_of([first]), WeightedMean(like)
    before = merged.value()

    mean.merge(merged.totals())
    for part in rest:
        mean.add(*part)

    assert same_bits(merged.value(), before)


def test_rounding_is_to_the_nearest_and_halves_to_even_up_to_the_largest_value() -> None:
    # In units of 2^-36, with 2^51 units where the fast way of rounding ends, in steps that float32 has.
    units = [0.5, 1.5, 2.5, -0.5, -1.5, 0.75, -0.75, 3.0, 2.0**50, 2.0**51, -(2.0**51), 2.0**52, 2.0**60]
    expected = [0, 2, 2, 0, -2, 1, -1, 3, 2**50, 2**51, -(2**51), 2**52, 2**60]
    for count in range(1, len(units) + 1):
        change = {"w": torch.tensor(units[:count]) / 2**36}
        mean = WeightedMean(change)

        mean.add("a", change, weight=1)

        assert mean.totals().limbs["w"].tolist() == [expected[:count]]


def test_a_float64_change_of_a_float32_tensor_is_left_as_it_is() -> None:
    change = {"w": torch.full((3,), 0.1, dtype=torch.float64)}
    mean = WeightedMean({"w": torch.zeros(3)})

    mean.add("a", change, weight=2)

    assert torch.equal(change["w"], torch.full((3,), 0.1, dtype=torch.float64))
    assert mean.value()["w"].tolist() == pytest.approx([0.1] * 3)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_the_default_type_of_new_tensors_makes_no_difference(default: torch.dtype) -> None:
    u = torch.tensor([1.0 + 2.0**-20], dtype=torch.float32)  # It has too many bits for bfloat16.
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        mean = WeightedMean({"u": torch.zeros(1, dtype=torch.float32)})
        mean.add("a", {"u": u}, weight=1)
    finally:
        torch.set_default_dtype(before)

    assert same_bits(mean.value(), {"u": u})


def test_small_and_large_tensors_of_all_types_have_means_of_their_own() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 2), "large": (20_000,), "none": (0,), "b": (), "c": (5,), "d": (4,)}
    types = dict.fromkeys(shapes, torch.float32) | {"c": torch.float64, "d": torch.bfloat16}
    parts = [
        ("one", {n: torch.randn(s, generator=generator).to(types[n]) for n, s in shapes.items()}, 2),
        ("two", {n: torch.randn(s, generator=generator).to(types[n]) for n, s in shapes.items()}, 5),
    ]

    value = mean_of(parts).value()

    for name, mean in value.items():
        alone = mean_of([(device, {name: change[name]}, weight) for device, change, weight in parts])
        assert mean.dtype == types[name]
        assert mean.shape == shapes[name]
        assert torch.equal(mean, alone.value()[name])
        assert mean.untyped_storage().nbytes() == mean.nbytes


def test_whole_numbers_come_from_the_lowest_device() -> None:
    like = {"seen": torch.tensor(0)}
    mean = WeightedMean(like)

    for device, seen in [("b", 2), ("a", 1), ("c", 3)]:
        mean.add(device, {"seen": torch.tensor(seen)}, weight=1)
    other = WeightedMean(like)
    other.merge(mean.totals())

    assert mean.value()["seen"].item() == other.value()["seen"].item() == 1


@pytest.mark.parametrize(
    ("change", "weight", "words"),
    [
        ({"u": torch.tensor([1.0, float("nan")])}, 1, "'d7'.*finite"),
        ({"u": torch.tensor([1.0, float("inf")])}, 1, "'d7'.*finite"),
        ({"u": torch.tensor([1.0, -1e39], dtype=torch.float64)}, 1, r"'d7'.*at most 3.4e\+38"),
        ({"v": torch.tensor([1.0, 2.0])}, 1, r"missing \['u'\], unknown \['v'\]"),
        ({"u": torch.tensor([1.0])}, 1, r"shape \(2,\), got \(1,\)"),
        ({"u": torch.tensor([1.0, 2.0])}, 0, "weight.*at least 1"),
    ],
)
def test_a_change_that_cannot_be_counted_is_refused_and_leaves_the_mean(
    change: dict[str, torch.Tensor], weight: int, words: str
) -> None:
    mean = WeightedMean({"u": torch.zeros(2)})
    mean.add("d1", {"u": torch.tensor([1.0, 2.0])}, weight=2)

    with pytest.raises(ValueError, match=words):
        mean.add("d7", change, weight)

    assert mean.value()["u"].tolist() == [1.0, 2.0]


def moved(like: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (tensor + torch.randn(tensor.shape, generator=generator) * 1e-3).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor + seed
        for name, tensor in like.items()
    }


LIKE = {
    "large": torch.linspace(-1, 1, 300_000),
    "half": torch.linspace(-1, 1, 140_000).half(),
    "double": torch.linspace(-1, 1, 5, dtype=torch.float64),
    "small": torch.linspace(-1, 1, 6).view(2, 3),
    "brain": torch.linspace(-1, 1, 4).bfloat16(),
    "count": torch.tensor(3),
}


@pytest.mark.parametrize("weights", [(3, 70_000), (2**33, 5), (2**70, 1)])
def test_what_a_model_has_become_counts_as_its_change(weights: tuple[int, int]) -> None:
    by_change, by_model = WeightedMean(LIKE), WeightedMean(LIKE)

    for number, weight in enumerate(weights):
        after = moved(LIKE, seed=number)
        by_change.add(f"d{number}", change_of(after, LIKE), weight)
        by_model.add_after(f"d{number}", after, weight)

    assert same_bits(by_model.value(), by_change.value())


@pytest.mark.parametrize("count", [1, 18, 19, 40])
@pytest.mark.parametrize("weight", [1, 2**33, 2**70])
def test_small_tensors_that_are_added_up_for_several_devices_at_a_time_have_the_same_mean(
    count: int, weight: int
) -> None:
    like = {"matrix": torch.linspace(-1, 1, 7_000).view(7, 1_000), "vector": torch.zeros(200)}
    by_change, by_model, merged = (WeightedMean(like) for _ in range(3))

    for number in range(count):
        after: dict[str, torch.Tensor] = moved(like, seed=number)
        if number % 7 == 5:  # Too large to wait, and of another type.
            after["vector"] = after["vector"] + 1e25
        if number % 7 == 6:
            after["matrix"] = after["matrix"].double() + 2.0**-30
        by_change.add(f"d{number:02}", change_of(after, like), weight + number)
        by_model.add_after(f"d{number:02}", after, weight + number)
        if number % 10 == 3:  # A change between others.
            for mean in (by_change, by_model):
                mean.add("e", moved(like, seed=99), 5)
    merged.merge(by_model.totals())

    assert same_bits(by_model.value(), by_change.value())
    assert same_bits(merged.value(), by_change.value())


@pytest.mark.parametrize("weight", [3, 2**33, 2**70])
@pytest.mark.parametrize(("name", "position"), [("large", 299_999), ("half", 0), ("double", 4), ("brain", 2)])
def test_what_was_added_of_a_refused_change_is_taken_back(name: str, position: int, weight: int) -> None:
    mean, expected = WeightedMean(LIKE), WeightedMean(LIKE)
    bad = moved(LIKE, seed=1)
    bad[name].view(-1)[position] = float("nan")
    for each in (mean, expected):
        each.add_after("d0", moved(LIKE, seed=0), weight)

    with pytest.raises(ValueError, match=f"The change of `{name}` on device 'd1' must be finite"):
        mean.add_after("d1", bad, weight)

    assert same_bits(mean.value(), expected.value())
    assert mean.weight == weight


LARGEST = torch.finfo(torch.float32).max


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        # 2^36 x 3 x 2^30 and 2^36 x 2^27 are both past 2^62, where int64 alone would overflow.
        ([(3.0, 2**30)], 3.0),
        ([(2.0**27, 1), (-(2.0**26), 1)], 2.0**25),
        ([(2.0**27, 10**6), (1.0, 3 * 10**6)], (2.0**27 + 3) / 4),
        # Weights past int64 itself.
        ([(1.0, 2**70), (-3.0, 2**70)], -1.0),
        # The ends of float32.
        ([(LARGEST, 1)] * 5, LARGEST),
        ([(LARGEST, 2**40), (-LARGEST, 2**40)], 0.0),
        ([(-LARGEST, 1), (0.0, 1)], -LARGEST / 2),
        # A sum in float64 would lose the 1, and with it the whole result.
        ([(1e30, 1), (3.0, 1), (-1e30, 1)], 1.0),
        ([(-1e30, 7), (-3.5, 7), (1e30, 7)], -3.5 / 3),
    ],
)
def test_no_device_is_refused_for_its_weight_or_a_large_change(
    parts: list[tuple[float, int]], expected: float
) -> None:
    mean = WeightedMean({"u": torch.zeros(1)})

    for value, weight in parts:
        mean.add("d", {"u": torch.tensor([value])}, weight)

    assert mean.value()["u"].item() == torch.tensor(expected).item()


def wild_changes(dtype: torch.dtype, seed: int) -> list[tuple[str, dict[str, torch.Tensor], int]]:
    """Changes of all magnitudes and signs with weights of all magnitudes, some of them opposites."""
    draw, parts = random.Random(seed), []
    most = draw.choice([0, 12, 38])
    for number in range(draw.randint(2, 7)):
        values = [
            draw.choice([-1, 1]) * draw.uniform(0.1, 0.9) * 10.0 ** draw.randint(-16, most) for _ in range(9)
        ]
        weight = draw.randint(1, 2 ** draw.choice([1, 10, 35, 70]))
        change = {"u": torch.tensor(values, dtype=dtype)}
        parts.append((f"d{number}", change, weight))
        if draw.random() < 0.3:
            parts.append((f"e{number}", {"u": -change["u"] * (1 + draw.choice([0, 2**-20]))}, weight))
    return parts


@pytest.mark.parametrize(("dtype", "scale", "bits"), [(torch.float32, 36, 24), (torch.float64, 100, 51)])
@pytest.mark.parametrize("seed", range(40))
def test_mean_is_the_rational_one_to_the_precision_of_its_type(
    dtype: torch.dtype, scale: int, bits: int, seed: int
) -> None:
    parts = wild_changes(dtype, seed)
    weights = sum(weight for *_, weight in parts)

    found = mean_of(parts).value()["u"]

    assert found.dtype == dtype
    for position, value in enumerate(found.tolist()):
        # `round` and Fractions are exact: each change is a multiple of 2^-scale, to the nearest even one.
        terms = [weight * round(Fraction(c["u"][position].item()) * 2**scale) for _, c, weight in parts]
        exact = Fraction(sum(terms), weights * 2**scale)
        assert abs(Fraction(value) - exact) <= abs(exact) * Fraction(1 + 2**-20) / 2**bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(40))
def test_mean_of_any_changes_has_the_same_bits_in_any_order_and_grouping(
    dtype: torch.dtype, seed: int
) -> None:
    parts, draw = wild_changes(dtype, seed), random.Random(seed)
    expected = mean_of(parts).value()

    for _ in range(5):
        groups = [mean_of([part]) for part in draw.sample(parts, len(parts))]
        while len(groups) > 1:
            other = groups.pop(draw.randrange(len(groups)))
            draw.choice(groups).merge(other.totals())

        assert same_bits(groups[0].value(), expected)


def test_a_device_can_be_added_after_a_merge_that_needed_more_room() -> None:
    # (2^40 x 2^30 + 5 x 2 + 2^40 x 2^30) / (2^31 + 2)
    like = {"u": torch.zeros(1)}
    big = mean_of([("a", {"u": torch.tensor([2.0**40])}, 2**30)])
    mean = WeightedMean(like)

    mean.merge(big.totals())
    mean.add("b", {"u": torch.tensor([5.0])}, weight=2)
    mean.merge(big.totals())

    assert mean.value()["u"].item() == torch.tensor(float(Fraction(2**71 + 10, 2**31 + 2))).item()


def test_a_float64_model_keeps_float64_means_and_its_changes() -> None:
    # Neither 1/3 nor 1e-12 / 3 is a float32 or a multiple of 2^-36; the mean of equal changes is the change.
    change = {"u": torch.tensor([1 / 3, -1e-12 / 3, 2**-48 + 2**-100], dtype=torch.float64)}
    before = {"u": change["u"].clone()}

    mean = mean_of([("a", change, 1), ("b", change, 3)])

    assert same_bits(mean.value(), before)
    assert same_bits(change, before)


def test_mean_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="undefined"):
        WeightedMean({"u": torch.zeros(1)}).value()


def test_mean_keeps_the_type_of_the_shared_part() -> None:
    half = {"u": torch.tensor([0.5, -2.0], dtype=torch.bfloat16)}
    mean = WeightedMean(half)

    mean.add("a", half, weight=1)

    assert torch.equal(mean.value()["u"], half["u"])
