"""The quickstart's task: handwritten digits by the form on which they were written.

scikit-learn's digits are 1,797 images of 8x8 from 14 forms, filled in by 13 people (E. Alpaydin and
C. Kaynak, Optical Recognition of Handwritten Digits, 1998). Each form is a device.
"""

import hashlib
from itertools import pairwise

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from partita.data.examples import Batch
from partita.models.convnet import ConvNet
from partita.tasks.metrics import accuracy
from partita.tasks.task import Task

FORMS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667, 1797)
"""The rows at which the forms begin, and the end."""


def digits(*, test_share: float = 0.3) -> Task:
    """Return the task of reading digits, a device for each form.

    Args:
        test_share: how much of each form is held out for testing.
    """
    if not 0 < test_share < 1:
        raise ValueError(f"`test_share` must be between 0 and 1, got {test_share!r}.")
    pixels, classes = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).float().div(16).view(-1, 1, 8, 8)
    labels = torch.from_numpy(classes).long()
    devices = {
        f"form-{number:02}": _split(images[begin:end], labels[begin:end], test_share)
        for number, (begin, end) in enumerate(pairwise(FORMS), start=1)
    }
    return Task(model=ConvNet, loss=cross_entropy, metrics={"accuracy": accuracy}, devices=devices)


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of a batch of images and labels."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def _split(images: Tensor, labels: Tensor, test_share: float) -> dict[str, tuple[Tensor, Tensor]]:
    """Hold out the images whose digests come first: which ones depends on nothing but the images."""
    digests = [hashlib.sha256(image.numpy().tobytes()).digest() for image in images]
    order = sorted(range(len(digests)), key=digests.__getitem__)
    held_out = round(test_share * len(order))
    rows = {"train": sorted(order[held_out:]), "test": sorted(order[:held_out])}
    return {name: (images[chosen], labels[chosen]) for name, chosen in rows.items()}
