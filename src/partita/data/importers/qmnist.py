"""QMNIST: MNIST's digits, all 120,000 of them, by the person who wrote them, in its idx files.

Cold Case: The Lost MNIST Digits
    C. Yadav, L. Bottou. NeurIPS 2019.
    https://arxiv.org/abs/1905.10498
"""

import gzip
import hashlib
import io
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
from PIL import Image

from partita.data.importers.source import Kind, Row, Survey, Tick
from partita.errors import ConfigError
from partita.protocol import DeviceId

_CLASS, _WRITER = 0, 2
"""The columns of the labels that are used."""


@dataclass(frozen=True)
class _Idx:
    """What an idx file must hold: a type by its code, and entries of one shape."""

    code: int
    dtype: str
    entry: tuple[int, ...]


_IMAGES = _Idx(0x08, "u1", (28, 28))
_LABELS = _Idx(0x0C, ">i4", (8,))


@dataclass(frozen=True)
class _Part:
    """A pair of idx files."""

    name: str
    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Qmnist:
    """QMNIST's digits by writer; `train` and `test` files, where both are there, are read as one.

    A digit is in the test set where the SHA-256 digest of its pixels, as a fraction, is below `test_share`:
    where that leaves a device without test or training rows, its smallest digest is test, its largest train.
    Pixels are as in the files: bright strokes on black.
    """

    path: Path
    """The folder with `qmnist-{train,test}-{images-idx3-ubyte,labels-idx2-int}`, plain or `.gz`."""
    least: int = 50
    """Writers with fewer digits are dropped."""
    test_share: float = 0.25
    """About how much of each device's digits is its test set."""

    def __post_init__(self) -> None:
        if self.least < 2:
            raise ConfigError(f"`least` must be at least 2, for a digit on either side, got {self.least}.")
        if not 0 < self.test_share < 1:
            raise ConfigError(f"`test_share` must be between 0 and 1, got {self.test_share}.")

    @property
    def columns(self) -> Mapping[str, Kind]:
        """The digit's image and the digit."""
        return {"image": "image", "label": "label"}

    def survey(self, tick: Tick) -> Survey:
        """Return which writers have enough digits; reads the labels only."""
        writers = np.concatenate([part.labels[:, _WRITER] for part in self._parts])
        names, counts = np.unique(writers, return_counts=True)
        kept = [_device(writer) for writer in names[counts >= self.least]]
        return Survey(sorted(kept), {f"fewer than {self.least} digits": len(names) - len(kept)})

    def rows(self, device: DeviceId) -> Iterator[Row]:
        """Yield the digits of one writer in the files' order."""
        writer = int(device.removeprefix("writer"))
        own = [
            (part, int(row))
            for part in self._parts
            for row in np.flatnonzero(part.labels[:, _WRITER] == writer)
        ]
        tests = _choose_tests([part.images[row].tobytes() for part, row in own], self.test_share)
        for number, (part, row) in enumerate(own):
            yield {
                "split": "test" if number in tests else "train",
                "image": {"bytes": _png(part.images[row]), "path": f"{part.name}-{row:05}.png"},
                "label": int(part.labels[row, _CLASS]),
            }

    @cached_property
    def _parts(self) -> list[_Part]:
        if not self.path.is_dir():
            raise ConfigError(f"There is no folder `{self.path}`.")
        parts = [part for name in ("train", "test") if (part := _read_part(self.path, name))]
        if not parts:
            wanted = "`qmnist-train-images-idx3-ubyte` and `qmnist-train-labels-idx2-int`, or those of `test`"
            raise ConfigError(f"`{self.path}` has no idx files: it needs {wanted}, plain or `.gz`.")
        return parts


def _device(writer: int) -> DeviceId:
    return f"writer{writer:04}"


def _choose_tests(pixels: Sequence[bytes], share: float) -> set[int]:
    """Return the positions of the images that are the test set."""
    digests = [hashlib.sha256(image).digest() for image in pixels]
    below = sum(int.from_bytes(digest[:8], "big") / 2**64 < share for digest in digests)
    by_digest = sorted(range(len(digests)), key=digests.__getitem__)
    return set(by_digest[: min(max(below, 1), len(digests) - 1)])


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).save(buffer, "PNG")
    return buffer.getvalue()


def _read_part(folder: Path, name: str) -> _Part | None:
    """Return the images and labels of one pair of files, or None where neither is there."""
    stems = f"qmnist-{name}-images-idx3-ubyte", f"qmnist-{name}-labels-idx2-int"
    images, labels = (_find(folder, stem) for stem in stems)
    if images is None and labels is None:
        return None
    if images is None or labels is None:
        there, missing = stems if labels is None else reversed(stems)
        raise ConfigError(f"`{folder}` has `{there}` but no `{missing}`, plain or `.gz`.")
    part = _Part(name, _read_idx(images, _IMAGES), _read_idx(labels, _LABELS))
    if len(part.images) != len(part.labels):
        counts = f"{len(part.images):,} images and {len(part.labels):,} labels"
        raise ConfigError(f"`{images}` and `{labels}` must have as many rows, got {counts}.")
    _check_labels(part.labels, labels)
    return part


def _check_labels(values: np.ndarray, path: Path) -> None:
    wrong = (values[:, _CLASS] < 0) | (values[:, _CLASS] > 9) | (values[:, _WRITER] < 0)
    if wrong.any():
        row = int(wrong.argmax())
        digit, writer = int(values[row, _CLASS]), int(values[row, _WRITER])
        given = f"class {digit} and writer {writer} in row {row} of `{path}`, device {_device(writer)!r}"
        raise ConfigError(f"A class must be 0 to 9 and a writer 0 or more, got {given}.")


def _find(folder: Path, stem: str) -> Path | None:
    both = folder / stem, folder / f"{stem}.gz"
    return next((path for path in both if path.is_file()), None)


def _read_idx(path: Path, kind: _Idx) -> np.ndarray:
    """Return the array of an idx file: mapped where it is plain, in memory where it is `.gz`."""
    data = _read_bytes(path)
    dimensions = 1 + len(kind.entry)
    begin = 4 + 4 * dimensions
    magic = bytes([0, 0, kind.code, dimensions])
    if len(data) < begin or data[:4].tobytes() != magic:
        given = f"got {data[:4].tobytes().hex() or 'nothing'} in {len(data):,} bytes"
        raise ConfigError(f"`{path}` is not the idx file it should be: its magic is {magic.hex()}, {given}.")
    shape = struct.unpack(f">{dimensions}I", data[4:begin].tobytes())
    if shape[1:] != kind.entry:
        raise ConfigError(f"`{path}` must hold entries of shape {kind.entry}, got {shape[1:]}.")
    size = begin + prod(shape) * np.dtype(kind.dtype).itemsize
    if len(data) != size:
        raise ConfigError(f"`{path}` must have {size:,} bytes for {shape[0]:,} entries, got {len(data):,}.")
    return data[begin:].view(kind.dtype).reshape(shape)


def _read_bytes(path: Path) -> np.ndarray:
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return np.frombuffer(file.read(), np.uint8)
        # An empty file cannot be mapped.
        return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"Cannot read `{path}`: {error}.") from None
