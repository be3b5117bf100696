"""Held-out validation for any task."""

from typing import Any

import pytest
import torch
from torch import Tensor

from partita import Devices, Task
from partita.data.examples import examples_of
from partita.tasks.validation import hold_out_validation, without_validation
from small import affine_task


def numbered(**counts: int) -> Task:
    """Return devices with the training examples 0, 1, 2, ... and negative test examples."""
    devices = {
        device: {"train": (numbers(count), numbers(count)), "test": (-numbers(3), -numbers(3))}
        for device, count in counts.items()
    }
    return affine_task(devices=devices)


def numbers(count: int) -> Tensor:
    return torch.arange(count).float()[:, None]


def inputs_of(task: Task, device: str, split: str) -> list[float]:
    examples = examples_of(task.devices[device][split])
    if not len(examples):
        return []
    return examples.batch_at(torch.arange(len(examples)))[0].flatten().tolist()


def test_training_and_validation_examples_are_disjoint_and_complete() -> None:
    task = hold_out_validation(numbered(a=20, b=7), 0.2)

    for device, count, expected in (("a", 20, 4), ("b", 7, 1)):
        train, validation = (inputs_of(task, device, split) for split in ("train", "validation"))
        assert len(validation) == expected
        assert sorted(train + validation) == list(range(count))


def test_the_same_examples_are_held_out_each_time() -> None:
    first, again = (inputs_of(hold_out_validation(numbered(a=20), 0.3), "a", "validation") for _ in range(2))

    assert first == again
    assert first == sorted(first)
    assert first != list(range(6))


def test_devices_with_the_same_number_of_examples_hold_out_different_ones() -> None:
    task = hold_out_validation(numbered(a=50, b=50), 0.2)

    assert inputs_of(task, "a", "validation") != inputs_of(task, "b", "validation")


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_at_least_one_example_stays_for_training(count: int) -> None:
    task = hold_out_validation(numbered(a=count), 0.99)

    assert len(inputs_of(task, "a", "train")) == min(1, count)
    assert len(inputs_of(task, "a", "validation")) == max(0, count - 1)


def test_an_existing_validation_split_is_kept() -> None:
    devices = {
        "own": {"train": (numbers(10), numbers(10)), "validation": (-numbers(2), -numbers(2))},
        "none": {"train": (numbers(10), numbers(10))},
    }

    task = hold_out_validation(affine_task(devices=devices), 0.5)

    assert (len(inputs_of(task, "own", "train")), len(inputs_of(task, "own", "validation"))) == (10, 2)
    assert (len(inputs_of(task, "none", "train")), len(inputs_of(task, "none", "validation"))) == (5, 5)


def test_other_splits_are_unchanged_and_all_are_listed() -> None:
    task = hold_out_validation(numbered(a=5), 0.2)

    assert list(task.devices["a"]) == ["train", "test", "validation"]
    assert len(task.devices["a"]) == 3
    assert inputs_of(task, "a", "test") == [0, -1, -2]


def test_test_examples_are_never_read() -> None:
    class Sealed(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            assert name != "test"
            return super().__getitem__(name)

    plain = numbered(a=5)
    sealed = plain.with_devices(Devices(plain.devices.ids, lambda device: Sealed(plain.devices[device])))

    task = hold_out_validation(sealed, 0.2)

    assert len(inputs_of(task, "a", "train") + inputs_of(task, "a", "validation")) == 5


@pytest.mark.parametrize("share", [0, 1, -0.5, 2.0])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(ValueError, match="`validation` must be between 0 and 1"):
        hold_out_validation(numbered(a=5), share)


def test_devices_without_validation_examples_are_found() -> None:
    # A fifth of 2 examples is nearest to none.
    task = hold_out_validation(numbered(one=1, two=2, three=3), 0.2)

    assert list(task.devices["two"]) == ["train", "test"]
    assert without_validation(task, task.devices.ids) == ["one", "two"]
