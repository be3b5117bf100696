"""GLDv2: photos of landmarks by Wikipedia contributor, in TensorFlow Federated's files.

Federated Visual Classification with Real-World Data Distribution
    T.-M. H. Hsu, H. Qi, M. Brown. ECCV 2020.
    https://arxiv.org/abs/2003.08082
"""

import csv
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from partita.data.importers.source import Row, Survey
from partita.data.writing import ColumnKind, ProgressFn
from partita.errors import ConfigError, shortened
from partita.protocol import DeviceId

_TABLE = "federated_train.csv"
_COLUMNS = ("user_id", "image_id", "class")
_MIN_EXAMPLES = 50
_PAPER = 823
"""The number of devices in the paper, with at least 50 images each."""
_MAX_NAME = 200
"""The maximum length of an image's id, which is part of a file name."""
_MAX_DIGITS = 18
"""The maximum number of digits of a class: such a number fits in 64 bits."""


@dataclass(frozen=True, slots=True)
class _Photo:
    name: str
    label: int
    row: int
    """The number of its row in the table; the header is row 1."""


@dataclass(frozen=True, kw_only=True)
class Gldv2:
    """The federated GLDv2, with a device per contributor.

    Half of a device's images, rounded down, are test images: those whose ids have the smallest SHA-256
    digests. Image files are copied without decoding them.
    """

    path: Path
    """The folder with `federated_train.csv` and, in it or its subfolders, the images `<image_id>.jpg`."""
    min_examples: int = _MIN_EXAMPLES
    """Devices with fewer images are dropped."""

    def __post_init__(self) -> None:
        if self.min_examples < 2:
            raise ConfigError(
                f"`min_examples` must be at least 2, a training and a test image, got {self.min_examples}."
            )

    @property
    def columns(self) -> Mapping[str, ColumnKind]:
        """The columns of content: the image and its landmark."""
        return {"image": "image", "label": "label"}

    def survey(self, progress: ProgressFn) -> Survey:
        """Return the devices with enough images; reads only the table."""
        kept = sorted(device for device, photos in self._photos.items() if len(photos) >= self.min_examples)
        return Survey(
            kept,
            {f"fewer than {self.min_examples} images": len(self._photos) - len(kept)},
            _PAPER if self.min_examples == _MIN_EXAMPLES else None,
        )

    def rows(self, device: DeviceId) -> Iterator[Row]:
        """Yield the images of one device in the table's order."""
        photos = self._photos[device]
        by_digest = sorted(photos, key=lambda photo: hashlib.sha256(photo.name.encode()).digest())
        tests = {photo.row for photo in by_digest[: len(photos) // 2]}
        for photo in photos:
            yield {
                "split": "test" if photo.row in tests else "train",
                "image": {"bytes": self._read_image(photo, device), "path": f"{photo.name}.jpg"},
                "label": photo.label,
            }

    @cached_property
    def _photos(self) -> dict[DeviceId, list[_Photo]]:
        """The table's rows by device."""
        photos: dict[DeviceId, list[_Photo]] = {}
        path = self.path / _TABLE
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                for device, photo in _read_table(file, path):
                    photos.setdefault(device, []).append(photo)
        except OSError as error:
            raise ConfigError(f"Cannot read `{path}`: {error.strerror}.") from None
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"`{path}` is not a CSV file: {error}.") from None
        return photos

    def _read_image(self, photo: _Photo, device: DeviceId) -> bytes:
        where = f"row {photo.row} of `{self.path / _TABLE}`, device {device!r}"
        path = self._find_image(photo.name)
        if path is None:
            raise ConfigError(
                f"There is no image `{photo.name}.jpg` in `{self.path}` or its subfolders ({where})."
            )
        try:
            return path.read_bytes()
        except OSError as error:
            raise ConfigError(f"Cannot read the image `{path}`: {error.strerror} ({where}).") from None

    def _find_image(self, name: str) -> Path | None:
        """Return the path of an image: in the public layout, or else found by a search of all subfolders."""
        public = self.path.joinpath(*name[:3], f"{name}.jpg")
        return public if public.is_file() else self._elsewhere.get(name)

    @cached_property
    def _elsewhere(self) -> dict[str, Path]:
        """The paths of the table's images in any subfolder, by id; of two with one id, the first path."""
        names = {photo.name for photos in self._photos.values() for photo in photos}
        found: dict[str, Path] = {}
        for folder, inner, files in os.walk(self.path):
            inner.sort()
            for file in files:
                name = file.removesuffix(".jpg")
                if name != file and name in names:
                    found.setdefault(name, Path(folder, file))
        return found


def _read_table(lines: Iterator[str], path: Path) -> Iterator[tuple[DeviceId, _Photo]]:
    """Yield the device and the photo of each row of the table."""
    reader = csv.DictReader(lines)
    given = reader.fieldnames or ()
    missing = [name for name in _COLUMNS if name not in given]
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        raise ConfigError(f"`{path}` has no column {names}; its header is `{','.join(given)}`.")
    for entry in reader:
        device, name, label = (entry[column] or "" for column in _COLUMNS)
        where = f"row {reader.line_num} of `{path}`, device {device!r}"
        if not device or not name:
            raise ConfigError(f"A row needs `user_id` and `image_id`, got {device!r} and {name!r} ({where}).")
        if "/" in name or "\0" in name or len(name.encode()) > _MAX_NAME:
            raise ConfigError(
                f"`image_id` must be a file name without folders, of at most {_MAX_NAME} bytes, got "
                f"{shortened(name)} ({where})."
            )
        if not (label.isascii() and label.isdecimal()) or len(label.lstrip("0")) > _MAX_DIGITS:
            raise ConfigError(
                f"`class` must be a whole number, 0 or above, of at most {_MAX_DIGITS} digits, got "
                f"{shortened(label)} ({where})."
            )
        yield device, _Photo(name, int(label), reader.line_num)
