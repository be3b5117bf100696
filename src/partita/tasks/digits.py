"""The quickstart's task: handwritten digits by form.

scikit-learn's digits are 1,797 images of 8x8 from 14 forms, filled in by 13 people (E. Alpaydin and
C. Kaynak, Optical Recognition of Handwritten Digits, 1998). Each form is a device.
"""

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from partita.data.examples import Batch
from partita.models.convnet import ConvNet
from partita.tasks.classification_metrics import classification_metrics
from partita.tasks.task import Task

FORMS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667, 1797)
"""The first row of each form, and the number of rows."""


def digits(*, test_share: float = 0.3, metrics: Sequence[str] = ("accuracy",)) -> Task:
    """Return a task of digit classification, with a device for each form.

    Args:
        test_share: the share of test images of each form.
        metrics: the names of metrics, the first being the headline metric: accuracy, top5, macro_f1,
            balanced_accuracy, auroc, log_loss, calibration_error.
    """
    if not 0 < test_share < 1:
        raise ValueError(f"`test_share` must be between 0 and 1, got {test_share!r}.")
    images, labels = _images()
    devices = {
        f"form-{number:02}": _split(images[begin:end], labels[begin:end], test_share)
        for number, (begin, end) in enumerate(pairwise(FORMS), start=1)
    }
    return Task(
        model=ConvNet,
        loss=cross_entropy,
        metrics=classification_metrics(metrics, classes=10),
        devices=devices,
    )


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of a batch of images and labels."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def _images() -> tuple[Tensor, Tensor]:
    """Return the images and labels of scikit-learn's own file: to import its loader takes a second."""
    spec = find_spec("sklearn")
    assert spec is not None  # Partita depends on it.
    folder = Path(str(spec.origin)).parent
    rows = torch.from_numpy(np.loadtxt(folder / "datasets" / "data" / "digits.csv.gz", delimiter=","))
    return rows[:, :-1].float().div(16).view(-1, 1, 8, 8), rows[:, -1].long()


def _split(images: Tensor, labels: Tensor, test_share: float) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the splits of a form: test images are those with the smallest digests."""
    digests = [hashlib.sha256(image.numpy().tobytes()).digest() for image in images]
    order = sorted(range(len(digests)), key=digests.__getitem__)
    tests = round(test_share * len(order))
    splits = {"train": sorted(order[tests:]), "test": sorted(order[:tests])}
    return {name: (images[rows], labels[rows]) for name, rows in splits.items()}
