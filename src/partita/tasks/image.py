"""Image classification, from a table of images and labels by device."""

import math
import struct
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from partita.data.classes import class_names, count_classes
from partita.data.examples import Batch
from partita.data.options import keys_of, options_of
from partita.data.rows import BadRow, Rows, value_of
from partita.data.table import DeviceTable
from partita.models.resnet import ResNet
from partita.tasks.classification_metrics import classification_metrics
from partita.tasks.derived import check_agrees, read_derived
from partita.tasks.predictor import Predictor, class_answers, classes_of
from partita.tasks.task import Task

_MODES = {1: "L", 3: "RGB"}
_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
"""The usual constants, also torchvision's: mean and standard deviation of ImageNet's pixels by channel."""
_FORMATS = ("PNG", "JPEG", "JPEG2000", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM")
"""Pillow's formats that are decoded: for others, such as EPS, it starts programs on content of the table."""
_WIDE_MODES = ("I", "F")
"""Pillow's modes with 32 bits per pixel: the value of white is unknown."""

_PNG = struct.Struct(">16sII5BII4s")
"""The beginning of a PNG up to its header, which follows with a checksum; the length and name of a chunk."""
_PNG_BEGIN = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_PLAIN_KINDS = {(8, 0, 0, 0, 0): "L", (8, 2, 0, 0, 0): "RGB"}
"""Pillow's modes by bits, colors, compression, filter and interlacing of a PNG."""


def image(
    *,
    data: str,
    size: int = 28,
    channels: int = 1,
    classes: int = 0,
    crop_from: int = 0,
    flip: bool = False,
    mean: float | list[float] | str = 0.0,
    std: float | list[float] | str = 1.0,
    max_pixels: int = 50_000_000,
    image: str = "image",
    label: str = "label",
    metrics: Sequence[str] = ("accuracy",),
    derived: str = "",
    unseen: float = 0.0,
    **table: Any,
) -> Task:
    """Return a task of image classification.

    Args:
        data: a Parquet table by device, with a column of images and one of labels.
        size: the height and width that images are resized to.
        channels: 1 for gray, 3 for color.
        classes: the number of classes. 0: one more than the largest label.
        crop_from: in training, images are resized to this size and cropped to `size` at random. 0: no crop.
        flip: whether images are flipped horizontally at random in training.
        mean: the value that is subtracted from pixels, which are from 0 to 1: a number, one for each channel,
            or "imagenet", as models trained on ImageNet need it.
        std: the value that the result is divided by, in the same form.
        max_pixels: the maximum width times height of an image; larger ones are bad rows and are not decoded.
        image: the column of images.
        label: the column of labels: whole numbers from 0 on.
        metrics: the names of metrics, the first being the headline metric: accuracy, top5, macro_f1,
            balanced_accuracy, auroc, log_loss, calibration_error.
        derived: the file `derived.json` of a run, to use its number of classes.
        unseen: the share of devices that the number of classes does not depend on; in a config,
            `evaluate.unseen`.
        table: how the table is read, see `TableOptions`.
    """
    if channels not in _MODES:
        raise ValueError(f"`channels` must be 1 or 3, got {channels}.")
    if size < 1 or (crop_from and crop_from < size):
        raise ValueError(f"`size` must be at least 1, and at most `crop_from`, got {size} and {crop_from}.")
    if max_pixels < 1:
        raise ValueError(f"`max_pixels` must be at least 1, got {max_pixels}.")
    if classes < 0:
        raise ValueError(f"`classes` must be 0 or above, got {classes}.")
    pixels = {name: _per_channel(name, own, channels) for name, own in (("mean", mean), ("std", std))}
    if not (pixels["std"] > 0).all():
        raise ValueError(f"`std` must be above 0, got {std!r}.")
    source = DeviceTable(Path(data), options_of(table, _KEYS), (image, label), unseen=unseen)
    values = read_derived("image", derived) or {
        "kind": "image",
        "classes": classes or count_classes(source, label),
    }
    check_agrees("classes", classes, values)
    classes = values["classes"]
    options = {"classes": classes, "channels": channels, "stem": "small" if size < 96 else "large"}
    augment = partial(_augment, size=size, flip=flip, **pixels)
    parser = _Parser(
        image=image,
        label=label,
        size=size,
        training_size=crop_from or size,
        channels=channels,
        classes=classes,
        max_pixels=max_pixels,
    )
    return Task(
        model=partial(ResNet, depth=10, width=0.25, **options),
        loss=partial(_loss, augment=augment),
        metrics=classification_metrics(metrics, classes),
        devices=source.devices(parser),
        predict=partial(_predict, augment=augment),
        model_options=options,
        skipped=source.skipped,
        derived=values,
        predictor=_predictor(parser, pixels, class_names(source, label, classes), augment),
    )


_KEYS = keys_of(image)


def _predictor(
    parser: "_Parser", pixels: Mapping[str, Tensor], names: Sequence[str], augment: Any
) -> Predictor:
    """Return how rows without labels are predicted."""
    about = {name: values.flatten().tolist() for name, values in pixels.items()}
    return Predictor(
        columns=(parser.image,),
        examples=replace(parser, label=""),
        predict=lambda model, batch: class_answers(_predict(model, batch, augment=augment)[0], names),
        kinds=classes_of(names),
        preprocessing={
            "size": parser.size,
            "channels": parser.channels,
            "pixels": "from 0 to 1, minus `mean`, divided by `std`",
            **about,
            **({"names": list(names)} if names else {}),
        },
    )


def _per_channel(name: str, value: Any, channels: int) -> Tensor:
    """Return the `mean` or `std` of pixels with a value for each channel, of shape (channel, 1, 1)."""
    values = _IMAGENET[name] if value == "imagenet" else value
    numbers = [values] * channels if isinstance(values, int | float) else values
    is_list = isinstance(numbers, list | tuple) and all(isinstance(n, int | float) for n in numbers)
    if not is_list or len(numbers) != channels or not all(map(math.isfinite, numbers)):
        raise ValueError(
            f"`{name}` must be a number, a list of {channels} numbers, one for each channel, or, with 3 "
            f"channels, 'imagenet', got {value!r}."
        )
    return torch.tensor(numbers, dtype=torch.float32).view(-1, 1, 1)


@dataclass(frozen=True, kw_only=True)
class _Parser:
    """Makes examples of rows: images as bytes, and labels."""

    image: str
    label: str
    """Empty: rows have no label, and examples the label 0."""
    size: int
    training_size: int
    channels: int
    classes: int
    max_pixels: int

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        size = self.training_size if rows.split == "train" else self.size
        with _limited(self.max_pixels):
            parsed = rows.parse(lambda row: (self._pixels(row, size), self._label(row)))
        pixels = b"".join(pixels for pixels, _ in parsed)
        # A copy, also where it has the same bytes: torch takes other kernels by the strides of a tensor.
        images = np.empty((len(parsed), self.channels, size, size), np.uint8)
        images[:] = np.ndarray((len(parsed), size, size, self.channels), np.uint8, pixels).transpose(
            0, 3, 1, 2
        )
        return torch.from_numpy(images), torch.tensor([label for _, label in parsed], dtype=torch.long)

    def _pixels(self, row: Any, size: int) -> bytes:
        """Return an image as bytes (height, width, channel)."""
        content = value_of(row, self.image, dict).get("bytes")
        try:
            decoded = _plain_png(content or b"", self.max_pixels) or _opened(content or b"")
            if decoded.mode in _WIDE_MODES:
                raise BadRow(f"`{self.image}` must have 8 or 16 bits per pixel, got 32")
            decoded = _on_white(_eight_bits(decoded))
            if decoded.mode != _MODES[self.channels]:
                decoded = decoded.convert(_MODES[self.channels])
        except BadRow:
            raise
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise BadRow(f"`{self.image}` has more pixels than `max_pixels` = {self.max_pixels}") from error
        except Exception as error:
            raise BadRow(f"`{self.image}` cannot be decoded as an image") from error
        if decoded.size != (size, size):
            decoded = decoded.resize((size, size), Image.Resampling.BILINEAR)
        return decoded.tobytes()

    def _label(self, row: Any) -> int:
        if not self.label:
            return 0
        label = value_of(row, self.label, int)
        if not 0 <= label < self.classes:
            raise BadRow(f"`{self.label}` must be from 0 to {self.classes - 1}, got {label}")
        return label


@contextmanager
def _limited(pixels: int) -> Iterator[None]:
    """Let Pillow raise, in this block, before it decodes an image with more pixels."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, pixels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _opened(content: bytes) -> Image.Image:
    """Return a decoded image of one of the `_FORMATS`."""
    image = Image.open(BytesIO(content), formats=_FORMATS)
    image.load()
    return image


def _plain_png(content: bytes, max_pixels: int) -> Image.Image | None:
    """Return a decoded PNG of the plainest kind, in half the time; None for any other content.

    It has 8 bits per channel and three chunks, none of which is damaged: header, pixels and end.
    """
    if len(content) < _PNG.size + len(_PNG_END):
        return None
    begin, width, height, *kind, header_crc, length, name = _PNG.unpack_from(content)
    mode, end = _PLAIN_KINDS.get(tuple(kind)), _PNG.size + length
    is_plain = (begin, name, content[end + 4 :]) == (_PNG_BEGIN, b"IDAT", _PNG_END)
    if mode is None or not is_plain or not 0 < width * height <= max_pixels:
        return None
    crc = int.from_bytes(content[end : end + 4], "big")
    if zlib.crc32(content[12:29]) != header_crc or zlib.crc32(content[_PNG.size - 4 : end]) != crc:
        return None
    try:
        return Image.frombytes(mode, (width, height), content[_PNG.size : end], "zip", mode)
    except (ValueError, OSError):
        return None


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return an image with 8 bits per pixel; Pillow would clip one of 16 bits at 255."""
    if not image.mode.startswith("I;16"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.uint32) // 257).astype(np.uint8))


def _on_white(image: Image.Image) -> Image.Image:
    """Return an image with its transparent pixels on white: their own colors can be arbitrary."""
    if not image.has_transparency_data:
        return image
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA"))


def _augment(images: Tensor, *, size: int, flip: bool, mean: Tensor, std: Tensor, training: bool) -> Tensor:
    """Return normalized images of the model's size: in training, randomly cropped and flipped."""
    images = images.float().div(255)
    given = images.shape[-1]
    if training and given > size:
        corners = torch.randint(given - size + 1, (len(images), 2)).tolist()
        crops = zip(images, corners, strict=True)
        images = torch.stack([i[:, top : top + size, left : left + size] for i, (top, left) in crops])
    elif given > size:
        images = nn.functional.interpolate(images, (size, size), mode="bilinear", antialias=True)
    if training and flip:
        flipped = (torch.rand(len(images)) < 0.5).to(images.device)
        images = torch.where(flipped[:, None, None, None], images.flip(-1), images)
    return (images - mean.to(images.device)) / std.to(images.device)


def _loss(model: nn.Module, batch: Batch, *, augment: Any) -> Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(model(augment(images, training=model.training)), labels)


def _predict(model: nn.Module, batch: Batch, *, augment: Any) -> tuple[Tensor, Tensor]:
    images, labels = batch
    return model(augment(images, training=False)), labels
