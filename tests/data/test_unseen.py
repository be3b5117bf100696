"""Unseen devices: chosen by their ids alone."""

import tracemalloc

import pytest

from partita.data.arrow import Ids
from partita.data.unseen import divide, is_unseen


def test_the_share_is_kept_and_a_larger_share_only_adds_devices() -> None:
    ids = [f"device {number}" for number in range(4000)]

    few, many = (set(divide(ids, share)[1]) for share in (0.1, 0.3))

    assert few < many
    assert len(few) == pytest.approx(400, abs=60)
    assert len(many) == pytest.approx(1200, abs=90)


def test_adding_devices_moves_none_and_order_does_not_matter() -> None:
    ids = [f"d{number}" for number in range(50)]

    seen, unseen = divide(ids, 0.3)
    later = divide([*reversed(ids), "new"], 0.3)

    assert [*seen, *unseen] != ids
    assert sorted([*seen, *unseen]) == sorted(ids)
    assert set(seen) <= set(later[0])
    assert set(unseen) <= set(later[1])


def test_the_choice_is_not_that_of_a_sample_of_devices() -> None:
    # `task.devices` takes the smallest plain hashes: none of its devices may be more likely to be unseen.
    from hashlib import sha256

    ids = sorted((f"d{number}" for number in range(2000)), key=lambda d: sha256(d.encode()).digest())

    assert len(divide(ids[:500], 0.3)[1]) == pytest.approx(150, abs=40)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["d0", "d2"], "leaves none of the 2 devices unseen"),
        (["d1", "d5", "d6"], "leaves no device to train on: the hashes of their ids make all 3 unseen"),
    ],
)
def test_a_share_without_seen_or_unseen_devices_is_an_error(ids: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=f"`evaluate.unseen` = 0.3 {words}"):
        divide(ids, 0.3)


def test_many_devices_take_eight_bytes_each() -> None:
    ids = Ids(f"{number:06}" for number in range(20_000))

    tracemalloc.start()
    seen, unseen = divide(ids, 0.5)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(seen) + len(unseen) == 20_000
    assert size < 500_000
    assert seen[:2] == [seen[0], seen[1]]
    assert not is_unseen(seen[-1], 0.5)
