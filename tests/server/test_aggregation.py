"""Rules of aggregation that a few devices cannot bend, against values worked out by hand and by numpy."""

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from partita import Aggregating
from partita.mean import WeightedMean
from partita.server.aggregation import TrimmedMean, clipped


def combined(changes: dict[str, Any], *, like: dict[str, Tensor] | None = None, **rule: Any) -> Any:
    """Return the combined change of one tensor, `u`, from the values of each device."""
    tensors = {device: torch.as_tensor(change) for device, change in changes.items()}
    first = next(iter(tensors.values()))
    aggregator = Aggregating(**rule).begin(like or {"u": torch.zeros_like(first)})
    for device, change in tensors.items():
        aggregator.add(device, {"u": change}, 1)
    return aggregator.value()["u"].tolist()


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        ({"aggregation": "median"}, [5.0], 5.0),
        ({"aggregation": "median"}, [5.0, 1.0], 3.0),
        ({"aggregation": "median"}, [5.0, -1e30, 1.0], 1.0),
        ({"aggregation": "median"}, [5.0, -1e30, 1.0, 2.0], 1.5),
        # One of five at each end: (1 + 2 + 4) / 3.
        ({"aggregation": "trimmed_mean"}, [4.0, -1e30, 2.0, 1e30, 1.0], 7 / 3),
        # 0.2 x 6 = 1.2 is rounded up to 2: (2 + 3) / 2.
        ({"aggregation": "trimmed_mean"}, [1.0, 2.0, 3.0, 4.0, 100.0, -100.0], 2.5),
        # Of two devices no one can be left out at each end.
        ({"aggregation": "trimmed_mean"}, [1.0, 2.0], 1.5),
        ({"aggregation": "trimmed_mean", "trim": 0.0}, [1.0, 2.0, 6.0], 3.0),
        ({"aggregation": "trimmed_mean", "trim": 0.49}, [1.0, 2.0, 6.0, 7.0], 4.0),
    ],
)
def test_one_coordinate_by_hand(rule: dict[str, Any], values: list[float], expected: float) -> None:
    # Each value is rounded to a multiple of 2^-36, and the mean to float32.
    changes = {f"d{n}": [value] for n, value in enumerate(values)}

    assert combined(changes, **rule) == [np.float32(expected)]


@pytest.mark.parametrize("aggregation", ["mean", "trimmed_mean", "median"])
def test_tensors_may_have_any_order_in_memory(aggregation: str) -> None:
    like = {"u": torch.zeros(3, 2).t()}  # As in a model with transposed or `channels_last` weights.
    aggregator = Aggregating(aggregation=aggregation).begin(like)
    for device in range(3):
        aggregator.add(f"d{device}", {"u": (torch.arange(6.0).view(3, 2) + device).t()}, 1)

    assert aggregator.value()["u"].tolist() == [[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]


@pytest.mark.parametrize("devices", [1, 2, 5, 10, 13])
@pytest.mark.parametrize("size", [1, 7, 70_000])
def test_every_coordinate_is_combined_by_itself(devices: int, size: int) -> None:
    values = torch.randn(devices, size, generator=torch.Generator().manual_seed(devices))
    changes = {f"d{n}": row for n, row in enumerate(values)}

    median = combined(changes, aggregation="median")
    trimmed = combined(changes, aggregation="trimmed_mean", trim=0.2)

    ordered, out = np.sort(values.double().numpy(), axis=0), min(math.ceil(0.2 * devices), (devices - 1) // 2)
    np.testing.assert_allclose(median, np.median(values.double().numpy(), axis=0), rtol=1e-6, atol=1e-10)
    np.testing.assert_allclose(trimmed, ordered[out : devices - out].mean(axis=0), rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "mean"])
@pytest.mark.parametrize("max_change_norm", [0.0, 2.0])
def test_the_order_of_arrival_changes_no_bit(rule: str, max_change_norm: float) -> None:
    generator = torch.Generator().manual_seed(3)
    changes = {device: torch.randn(50, generator=generator) for device in "abcd"}

    found = {
        tuple(
            combined(
                {device: changes[device] for device in order},
                aggregation=rule,
                max_change_norm=max_change_norm,
            )
        )
        for order in permutations("abcd")
    }

    assert len(found) == 1


def test_weights_do_not_count_in_robust_rules() -> None:
    aggregator = Aggregating(aggregation="median").begin({"u": torch.zeros(1)})
    for device, change, weight in (("a", 1.0, 1), ("b", 2.0, 1), ("c", 900.0, 10**9)):
        aggregator.add(device, {"u": torch.tensor([change])}, weight)

    assert aggregator.value()["u"].item() == 2.0


def test_integer_tensors_take_the_lower_median() -> None:
    like = {"u": torch.zeros(1), "seen": torch.zeros(2, dtype=torch.int64)}
    aggregator = TrimmedMean(like, lambda devices: 1)
    for device, seen in zip("abcd", ([10, 4], [-(10**9), 3], [20, 10**9], [30, 2]), strict=True):
        aggregator.add(device, {"u": torch.zeros(1), "seen": torch.tensor(seen)}, 1)

    assert aggregator.value()["seen"].tolist() == [10, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_value_has_the_type_of_the_shared_part(dtype: torch.dtype) -> None:
    aggregator = Aggregating(aggregation="median").begin({"u": torch.zeros(2, dtype=dtype)})
    for device in "abc":
        aggregator.add(device, {"u": torch.ones(2, dtype=dtype)}, 1)

    assert aggregator.value()["u"].dtype == dtype


def test_the_changes_that_are_handed_over_stay_as_they_are() -> None:
    changes = {device: {"u": torch.tensor([float(n), -float(n)])} for n, device in enumerate("abc")}
    aggregator = Aggregating(aggregation="median", max_change_norm=1.0).begin({"u": torch.zeros(2)})
    for device, change in changes.items():
        aggregator.add(device, change, 1)

    aggregator.value()

    assert [change["u"].tolist() for change in changes.values()] == [[0.0, 0.0], [1.0, -1.0], [2.0, -2.0]]


def test_a_change_is_scaled_down_to_the_largest_norm_over_all_tensors() -> None:
    # The norm of (3, 0), (0, 4) and (12) together is 13.
    change = {
        "u": torch.tensor([3.0, 0.0]),
        "w": torch.tensor([[0.0], [4.0]]),
        "b": torch.tensor(12.0, dtype=torch.float64),
        "seen": torch.tensor(1000),
    }

    found = clipped(change, 6.5)

    assert found["u"].tolist() == [1.5, 0.0]
    assert found["w"].tolist() == [[0.0], [2.0]]
    assert found["b"].item() == 6.0
    assert found["seen"].item() == 1000
    assert clipped(change, 13.0) is change


def test_a_clipped_mean_by_hand() -> None:
    # 100 becomes 5: (1 + 5) / 2.
    assert combined({"a": [1.0], "b": [100.0]}, max_change_norm=5.0) == [3.0]


def test_the_norm_is_the_same_with_any_number_of_threads() -> None:
    change = {"u": torch.randn(300_001, generator=torch.Generator().manual_seed(1))}
    threads, found = torch.get_num_threads(), []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        found.append(clipped(change, 1.0)["u"])
    torch.set_num_threads(threads)

    assert all(torch.equal(each, found[0]) for each in found)
    assert found[0].double().norm().item() == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("rule", ["mean", "trimmed_mean", "median"])
@pytest.mark.parametrize("norm", [0.0, 1.0])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"u": torch.tensor([float("nan")])}, "must be finite"),
        ({"u": torch.tensor([float("inf")])}, "must be finite.* got inf"),
        ({"u": torch.ones(2)}, "must have the shape"),
        ({"w": torch.ones(1)}, "must have the names"),
    ],
)
def test_a_change_that_cannot_be_used_leaves_the_rest_as_it_is(
    rule: Any, norm: float, change: dict[str, Tensor], words: str
) -> None:
    aggregator = Aggregating(aggregation=rule, max_change_norm=norm).begin({"u": torch.zeros(1)})
    aggregator.add("a", {"u": torch.tensor([0.5])}, 1)

    with pytest.raises(ValueError, match=words):
        aggregator.add("b", change, 1)

    assert aggregator.value()["u"].item() == 0.5


@pytest.mark.parametrize("settings", [{"aggregation": "median"}, {"max_change_norm": 1.0}])
def test_sums_are_refused_where_single_changes_are_needed(settings: dict[str, Any]) -> None:
    like = {"u": torch.zeros(1)}
    sums = WeightedMean(like)
    sums.add("a", {"u": torch.ones(1)}, 1)

    with pytest.raises(ValueError, match="needs each one by itself"):
        Aggregating(**settings).begin(like).merge(sums.totals())
    assert Aggregating(**settings).needs_single
    assert not Aggregating().needs_single


def test_no_change_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="The mean of no changes is undefined"):
        Aggregating(aggregation="median").begin({"u": torch.zeros(1)}).value()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"aggregation": "krum"}, "must be 'mean', 'trimmed_mean' or 'median', got 'krum'"),
        ({"trim": 0.5}, "at least 0 and below 0.5, got 0.5"),
        ({"trim": float("nan")}, "at least 0 and below 0.5, got nan"),
        ({"max_change_norm": -1.0}, "0 \\(no limit\\) or above, got -1.0"),
        ({"max_change_norm": float("inf")}, "finite number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Aggregating(**settings)
