"""The quickstart's task."""

import itertools

import torch
from sklearn.datasets import load_digits

from partita.tasks.digits import FORMS, digits


def test_each_of_fourteen_forms_is_split() -> None:
    task = digits()
    sizes = {
        device: [len(splits[name][1]) for name in ("train", "test")]
        for device, splits in task.devices.items()
    }

    assert len(sizes) == 14
    assert [sum(pair) for pair in sizes.values()] == [end - begin for begin, end in itertools.pairwise(FORMS)]
    assert sum(sum(pair) for pair in sizes.values()) == 1797
    assert all(test == round(0.3 * (train + test)) for train, test in sizes.values())


def test_images_and_labels_are_those_of_scikit_learn() -> None:
    pixels, classes = load_digits(return_X_y=True)
    expected = sorted((image.tolist(), int(label)) for image, label in zip(pixels, classes, strict=True))

    splits = [split for device in digits().devices.values() for split in device.values()]
    images, labels = (torch.cat(fields) for fields in zip(*splits, strict=True))
    found = sorted(zip((images * 16).flatten(1).tolist(), labels.tolist(), strict=True))

    assert found == expected


def test_digits_are_split_the_same_way_each_time() -> None:
    one, again = (digits().devices["form-03"]["test"][0] for _ in range(2))

    assert one.equal(again)
