"""EMNIST by writer, in TensorFlow Federated's files: 62 classes of handwritten characters."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from partita.data.importers.source import Row, Survey
from partita.data.importers.tff import check_minimums, choose_devices, open_examples, read_device
from partita.data.importers.tff_examples import Examples, Layout, Split
from partita.data.writing import ColumnKind, ProgressFn
from partita.errors import ConfigError
from partita.protocol import DeviceId

_LAYOUT = Layout(
    command="partita import emnist",
    hdf5={"train": "fed_emnist_train.h5", "test": "fed_emnist_test.h5"},
    sqlite="emnist_all.sqlite",
    splits={"train": "all_train", "test": "all_test"},
    members=("pixels", "label"),
)
_SIZE = 28
_CLASSES = 62
_PAPER = 1114


@dataclass(frozen=True, kw_only=True)
class Emnist:
    """EMNIST with a device per writer who has enough characters.

    Images are gray PNG files of 28x28 pixels, with 0 to 255 for the source's 0 to 1. They keep the polarity
    of the source: dark ink on white, unlike MNIST.
    """

    path: Path
    """The folder with `fed_emnist_train.h5` and `fed_emnist_test.h5`, or the file `emnist_all.sqlite`."""
    min_train_examples: int = 100
    """Devices with fewer training examples are dropped."""
    min_test_examples: int = 25
    """Devices with fewer test examples are dropped."""

    def __post_init__(self) -> None:
        check_minimums(self.min_train_examples, self.min_test_examples)

    @property
    def columns(self) -> Mapping[str, ColumnKind]:
        """The columns of content: an image and its class, 0 to 61."""
        return {"image": "image", "label": "label"}

    def survey(self, progress: ProgressFn) -> Survey:
        """Return the writers with enough examples."""
        devices, dropped = choose_devices(self._examples, self._minimums, progress)
        self._examples.keep(devices, progress)
        return Survey(devices, dropped, paper=_PAPER if self == Emnist(path=self.path) else None)

    def rows(self, device: DeviceId) -> Iterator[Row]:
        """Yield a writer's characters."""
        no_limit: Mapping[Split, None] = {"train": None, "test": None}
        for split, where, example in read_device(self._examples, device, self._minimums, no_limit):
            image = {"bytes": _png(example["pixels"], where), "path": None}
            yield {"split": split, "image": image, "label": _label(example["label"], where)}

    @property
    def _minimums(self) -> Mapping[Split, int]:
        return {"train": self.min_train_examples, "test": self.min_test_examples}

    @cached_property
    def _examples(self) -> Examples:
        return open_examples(_LAYOUT, self.path)


def _png(values: Sequence[Any], where: str) -> bytes:
    pixels = np.asarray(values)
    if pixels.shape != (_SIZE * _SIZE,) or pixels.dtype.kind != "f":
        raise ConfigError(
            f"{where}: `pixels` must be {_SIZE * _SIZE} real numbers, got {len(values)} of {pixels.dtype}."
        )
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise ConfigError(f"{where}: `pixels` must be from 0 to 1, got {pixels.min()} to {pixels.max()}.")
    gray = np.rint(255 * pixels).astype(np.uint8).reshape(_SIZE, _SIZE)
    file = io.BytesIO()
    Image.fromarray(gray).save(file, format="PNG")
    return file.getvalue()


def _label(values: Sequence[Any], where: str) -> int:
    if len(values) != 1 or not isinstance(values[0], int) or not 0 <= values[0] < _CLASSES:
        got = repr(values[0]) if len(values) == 1 else f"{len(values)} values"
        raise ConfigError(f"{where}: `label` must be a whole number from 0 to {_CLASSES - 1}, got {got}.")
    return values[0]
