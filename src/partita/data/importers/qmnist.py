"""QMNIST: all 120,000 of MNIST's handwritten digits by writer, in idx files.

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

from partita.data.importers.source import Row, Survey
from partita.data.writing import ColumnKind, ProgressFn
from partita.errors import ConfigError
from partita.protocol import DeviceId

_CLASS, _WRITER = 0, 2
"""The columns of the label file that are read."""
_MAX_PACKED = 500_000
"""The maximum number of entries of a `.gz` file, which is read into memory: all of QMNIST has 402,953."""


@dataclass(frozen=True)
class _Idx:
    """The expected format of an idx file: the code of its type, and the shape of an entry."""

    code: int
    dtype: str
    entry: tuple[int, ...]


_IMAGES = _Idx(0x08, "u1", (28, 28))
_LABELS = _Idx(0x0C, ">i4", (8,))


@dataclass(frozen=True)
class _Part:
    """The content of a pair of idx files."""

    name: str
    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Qmnist:
    """QMNIST with a device per writer; the `train` and `test` files, if both exist, are read as one.

    A digit is a test digit if the SHA-256 digest of its pixels, as a fraction, is below `test_share`. Each
    device has at least one test digit, the smallest digest, and one training digit, the largest. Pixels are
    as in the files: bright strokes on black.
    """

    path: Path
    """The folder with `qmnist-{train,test}-{images-idx3-ubyte,labels-idx2-int}`, plain or `.gz`."""
    min_examples: int = 50
    """Writers with fewer digits are dropped."""
    test_share: float = 0.25
    """About the share of test digits of each device."""

    def __post_init__(self) -> None:
        if self.min_examples < 2:
            raise ConfigError(
                f"`min_examples` must be at least 2, a training and a test digit, got {self.min_examples}."
            )
        if not 0 < self.test_share < 1:
            raise ConfigError(f"`test_share` must be between 0 and 1, got {self.test_share}.")

    @property
    def columns(self) -> Mapping[str, ColumnKind]:
        """The columns of content: an image and its digit."""
        return {"image": "image", "label": "label"}

    def survey(self, progress: ProgressFn) -> Survey:
        """Return the writers with enough digits; reads only the labels."""
        writers = np.concatenate([part.labels[:, _WRITER] for part in self._parts])
        names, counts = np.unique(writers, return_counts=True)
        kept = [_device(writer) for writer in names[counts >= self.min_examples]]
        return Survey(sorted(kept), {f"fewer than {self.min_examples} digits": len(names) - len(kept)})

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
            needed = "`qmnist-train-images-idx3-ubyte` and `qmnist-train-labels-idx2-int`, or those of `test`"
            raise ConfigError(f"`{self.path}` has no idx files: it needs {needed}, plain or `.gz`.")
        return parts


def _device(writer: int) -> DeviceId:
    return f"writer{writer:04}"


def _choose_tests(pixels: Sequence[bytes], share: float) -> set[int]:
    """Return the positions of the test images."""
    digests = [hashlib.sha256(image).digest() for image in pixels]
    below = sum(int.from_bytes(digest[:8], "big") / 2**64 < share for digest in digests)
    by_digest = sorted(range(len(digests)), key=digests.__getitem__)
    return set(by_digest[: min(max(below, 1), len(digests) - 1)])


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).save(buffer, "PNG")
    return buffer.getvalue()


def _read_part(folder: Path, name: str) -> _Part | None:
    """Return the images and labels of one pair of files, None if neither exists."""
    stems = f"qmnist-{name}-images-idx3-ubyte", f"qmnist-{name}-labels-idx2-int"
    images, labels = (_find(folder, stem) for stem in stems)
    if images is None and labels is None:
        return None
    if images is None or labels is None:
        found, missing = stems if labels is None else reversed(stems)
        raise ConfigError(f"`{folder}` has `{found}` but no `{missing}`, plain or `.gz`.")
    part = _Part(name, _read_idx(images, _IMAGES), _read_idx(labels, _LABELS))
    if len(part.images) != len(part.labels):
        counts = f"{len(part.images):,} images and {len(part.labels):,} labels"
        raise ConfigError(f"`{images}` and `{labels}` must have the same number of rows, got {counts}.")
    _check_labels(part.labels, labels)
    return part


def _check_labels(values: np.ndarray, path: Path) -> None:
    wrong = (values[:, _CLASS] < 0) | (values[:, _CLASS] > 9) | (values[:, _WRITER] < 0)
    if wrong.any():
        row = int(wrong.argmax())
        digit, writer = int(values[row, _CLASS]), int(values[row, _WRITER])
        given = f"class {digit} and writer {writer} in row {row} of `{path}`, device {_device(writer)!r}"
        raise ConfigError(f"A class must be 0 to 9 and a writer 0 or above, got {given}.")


def _find(folder: Path, stem: str) -> Path | None:
    both = folder / stem, folder / f"{stem}.gz"
    return next((path for path in both if path.is_file()), None)


def _read_idx(path: Path, kind: _Idx) -> np.ndarray:
    """Return the array of an idx file: memory-mapped if it is plain, in memory if it is `.gz`."""
    dimensions = 1 + len(kind.entry)
    data = _read_bytes(path, kind)
    begin = 4 + 4 * dimensions
    magic = bytes([0, 0, kind.code, dimensions])
    if len(data) < begin or data[:4].tobytes() != magic:
        given = f"got {data[:4].tobytes().hex() or 'nothing'} in {len(data):,} bytes"
        raise ConfigError(f"`{path}` must be an idx file with the magic number {magic.hex()}, {given}.")
    shape = struct.unpack(f">{dimensions}I", data[4:begin].tobytes())
    if shape[1:] != kind.entry:
        raise ConfigError(f"`{path}` must hold entries of shape {kind.entry}, got {shape[1:]}.")
    size = begin + prod(shape) * np.dtype(kind.dtype).itemsize
    if len(data) != size:
        # Of a `.gz` file no more is read than one byte too many.
        given = "more" if path.suffix == ".gz" and len(data) > size else f"{len(data):,}"
        raise ConfigError(f"`{path}` must have {size:,} bytes for {shape[0]:,} entries, got {given}.")
    return data[begin:].view(kind.dtype).reshape(shape)


def _read_bytes(path: Path, kind: _Idx) -> np.ndarray:
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return np.frombuffer(_read_packed(file, path, kind), np.uint8)
        # An empty file cannot be memory-mapped.
        return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"Cannot read `{path}`: {error}.") from None


def _read_packed(file: gzip.GzipFile, path: Path, kind: _Idx) -> bytes:
    """Return the bytes of a compressed idx file, at most one more than its header announces.

    Raises:
        ConfigError: the header announces more entries than any published file has.
    """
    header = file.read(4 + 4 * (1 + len(kind.entry)))
    entries = int.from_bytes(header[4:8], "big")
    if entries > _MAX_PACKED:
        raise ConfigError(
            f"`{path}` announces {entries:,} entries, more than the {_MAX_PACKED:,} that are read from a "
            "`.gz` file: decompress it first."
        )
    size = entries * prod(kind.entry) * np.dtype(kind.dtype).itemsize
    return header + file.read(size + 1)
