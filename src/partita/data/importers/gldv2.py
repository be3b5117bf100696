"""GLDv2: photos of landmarks by the Wikipedia contributor who took them, in TensorFlow Federated's files.

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

from partita.data.importers.source import Kind, Row, Survey, Tick
from partita.errors import ConfigError
from partita.protocol import DeviceId

_TABLE = "federated_train.csv"
_COLUMNS = ("user_id", "image_id", "class")
_LEAST = 50
_PAPER = 823
"""The devices the paper keeps, of those with at least 50 images."""


@dataclass(frozen=True, slots=True)
class _Photo:
    name: str
    label: int
    row: int
    """Its row in the table, where the header is row 1."""


@dataclass(frozen=True, kw_only=True)
class Gldv2:
    """The federated GLDv2; half of each device's images, rounded down, are its test set.

    Those are the ones whose ids have the smallest SHA-256 digests. Images are taken as they are, undecoded.
    """

    path: Path
    """The folder with `federated_train.csv`, and below it the images, `<image_id>.jpg`."""
    least: int = _LEAST
    """Devices with fewer images are dropped."""

    def __post_init__(self) -> None:
        if self.least < 2:
            raise ConfigError(f"`least` must be at least 2, for an image on either side, got {self.least}.")

    @property
    def columns(self) -> Mapping[str, Kind]:
        """The image and its landmark."""
        return {"image": "image", "label": "label"}

    def survey(self, tick: Tick) -> Survey:
        """Return which devices have enough images; reads the table, not the images."""
        kept = sorted(device for device, photos in self._photos.items() if len(photos) >= self.least)
        return Survey(
            kept,
            {f"fewer than {self.least} images": len(self._photos) - len(kept)},
            _PAPER if self.least == _LEAST else None,
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
            raise ConfigError(f"There is no image `{photo.name}.jpg` below `{self.path}` ({where}).")
        try:
            return path.read_bytes()
        except OSError as error:
            raise ConfigError(f"Cannot read the image `{path}`: {error.strerror} ({where}).") from None

    def _find_image(self, name: str) -> Path | None:
        """Return where an image is: in the usual place, or wherever else a walk found it."""
        usual = self.path.joinpath(*name[:3], f"{name}.jpg")
        return usual if usual.is_file() else self._elsewhere.get(name)

    @cached_property
    def _elsewhere(self) -> dict[str, Path]:
        """The table's images by id, in whatever folders they are; of two of one id, the first by path."""
        wanted = {photo.name for photos in self._photos.values() for photo in photos}
        found: dict[str, Path] = {}
        for folder, inner, files in os.walk(self.path):
            inner.sort()
            for file in files:
                name = file.removesuffix(".jpg")
                if name != file and name in wanted:
                    found.setdefault(name, Path(folder, file))
        return found


def _read_table(lines: Iterator[str], path: Path) -> Iterator[tuple[DeviceId, _Photo]]:
    """Yield the photos of the table with their devices."""
    reader = csv.DictReader(lines)
    given = reader.fieldnames or ()
    missing = [name for name in _COLUMNS if name not in given]
    if missing:
        lacking = ", ".join(f"`{name}`" for name in missing)
        raise ConfigError(f"`{path}` lacks the column {lacking}; its header is `{','.join(given)}`.")
    for entry in reader:
        device, name, label = (entry[column] or "" for column in _COLUMNS)
        where = f"row {reader.line_num} of `{path}`, device {device!r}"
        if not device or not name:
            raise ConfigError(f"A row needs `user_id` and `image_id`, got {device!r} and {name!r} ({where}).")
        if not (label.isascii() and label.isdecimal()):
            raise ConfigError(f"`class` must be a whole number of 0 or more, got {label!r} ({where}).")
        yield device, _Photo(name, int(label), reader.line_num)
