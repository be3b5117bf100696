"""Kept examples: the least recently used are dropped, half of the memory stays free, and new data is noticed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from partita.data.examples import examples_of
from partita.device.placement import OnAccelerator, Placement

META = torch.device("meta")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Placement:
    """A placement on an accelerator of 1000 bytes, of which 900 are free before any example is kept."""
    place = Placement(META)

    def memory_of(accelerator: torch.device) -> tuple[int, int]:
        splits = [kept.examples.examples.tensors for kept in place._kept.values()]
        return 900 - sum(tensor.nbytes for tensors in splits for tensor in tensors), 1000

    monkeypatch.setattr("partita.device.placement.memory_of", memory_of)
    return place


def kept(place: Placement, device: str, split: Any) -> bool:
    examples = place.examples(device, "train", split)
    assert isinstance(examples, OnAccelerator)
    return examples.is_kept


def test_splits_are_kept_while_half_of_the_memory_is_free_the_least_recently_used_dropped_first(
    place: Placement,
) -> None:
    a, b, c = [(torch.zeros(40),) for _ in range(3)]  # 160 bytes each: two fit in the 400 above one half.

    first = place.examples("a", "train", a)
    assert kept(place, "b", b)
    assert place.examples("a", "train", a) is first
    assert kept(place, "c", c)

    assert [device for device, _ in place._kept] == ["a", "c"]


def test_a_split_that_never_fits_is_moved_batch_by_batch_and_drops_no_other(place: Placement) -> None:
    assert kept(place, "b", (torch.zeros(10),))

    examples = place.examples("a", "train", (torch.zeros(101), torch.zeros(101)))

    assert isinstance(examples, OnAccelerator)
    assert not examples.is_kept
    assert [field.device for field in examples.batch_at(torch.tensor([0, 3]))] == [META, META]
    assert len(examples) == 101
    assert [device for device, _ in place._kept] == ["b"]


def test_other_kinds_of_examples_are_moved_batch_by_batch(place: Placement) -> None:
    examples = place.examples("a", "train", [(torch.zeros(2), 1), (torch.ones(2), 0)])

    inputs, labels = examples.batch_at(torch.tensor([1, 0]))

    assert (inputs.shape, inputs.device, labels.device) == ((2, 2), META, META)


def test_new_data_of_a_device_replaces_what_is_kept(place: Placement) -> None:
    split: tuple[Tensor, ...] = (torch.zeros(3),)
    before = place.examples("a", "train", split)

    assert place.examples("a", "train", split) is before
    assert place.examples("a", "train", (torch.zeros(3),)) is not before


def test_on_the_cpu_examples_are_what_they_are() -> None:
    split = (torch.zeros(3),)

    assert Placement(torch.device("cpu")).examples("a", "train", split) == examples_of(split)
