"""Telling what is in a picture, from a table of pictures and labels by device."""

from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from partita.data.examples import Batch
from partita.data.options import options_of
from partita.data.rows import BadRow, Rows, value_in
from partita.data.table import DeviceTable
from partita.models.resnet import ResNet
from partita.tasks.metrics import accuracy
from partita.tasks.task import Task

_MODES = {1: "L", 3: "RGB"}
_WIDE = ("I", "F")
"""Pillow's pictures of 32 bits to a pixel: nothing says which number is white."""


def image(
    *,
    data: str,
    size: int = 28,
    channels: int = 1,
    classes: int = 0,
    crop_from: int = 0,
    flip: bool = False,
    image: str = "image",
    label: str = "label",
    **table: Any,
) -> Task:
    """Return the task of telling the class of pictures.

    Args:
        data: a Parquet table with a column of pictures and one of labels, by device.
        size: the height and width that pictures are brought to.
        channels: 1 for gray, 3 for color.
        classes: how many classes there are; 0: as many as the largest label says.
        crop_from: in training, pictures of this size are cut to `size` at random; 0: they are not.
        flip: whether half of the pictures are mirrored in training.
        image: the column of pictures.
        label: the column of labels, whole numbers from 0 on.
        table: how the table is read, see `TableOptions`.
    """
    if channels not in _MODES:
        raise ValueError(f"`channels` must be 1 or 3, got {channels}.")
    if size < 1 or (crop_from and crop_from < size):
        raise ValueError(f"`size` must be at least 1, and at most `crop_from`, got {size} and {crop_from}.")
    if classes < 0:
        raise ValueError(f"`classes` must be 0 or above, got {classes}.")
    source = DeviceTable(Path(data), options_of(table), (image, label))
    classes = classes or source.classes(label)
    options = {"classes": classes, "channels": channels, "stem": "small" if size < 96 else "large"}
    view = partial(_viewed, size=size, flip=flip)
    read = _Reader(
        image=image,
        label=label,
        size=size,
        training_size=crop_from or size,
        channels=channels,
        classes=classes,
    )
    return Task(
        model=partial(ResNet, depth=10, width=0.25, **options),
        loss=partial(_loss, view=view),
        metrics={"accuracy": accuracy},
        devices=source.devices(read),
        predict=partial(_predict, view=view),
        model_options=options,
        skipped=source.skipped,
    )


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Makes examples of rows: pictures as bytes, and labels."""

    image: str
    label: str
    size: int
    training_size: int
    channels: int
    classes: int

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        size = self.training_size if rows.side == "train" else self.size
        read = rows.used(lambda row: (self._pixels(row, size), self._label(row)))
        images = np.zeros((len(read), self.channels, size, size), np.uint8)
        for image, (pixels, _) in zip(images, read, strict=True):
            image[:] = pixels
        return torch.from_numpy(images), torch.tensor([label for _, label in read], dtype=torch.long)

    def _pixels(self, row: Any, size: int) -> np.ndarray:
        """Return a picture as bytes (channel, height, width)."""
        content = value_in(row, self.image, dict).get("bytes")
        try:
            picture = Image.open(BytesIO(content or b""))
            picture.load()
            if picture.mode in _WIDE:
                raise BadRow(f"`{self.image}` has 32 bits to a pixel, give 8 or 16")
            picture = _on_white(_eight_bits(picture)).convert(_MODES[self.channels])
        except BadRow:
            raise
        except Exception as error:
            raise BadRow(f"`{self.image}` is not a picture that can be decoded") from error
        if picture.size != (size, size):
            picture = picture.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(picture).reshape(size, size, self.channels).transpose(2, 0, 1)

    def _label(self, row: Any) -> int:
        label = value_in(row, self.label, int)
        if not 0 <= label < self.classes:
            raise BadRow(f"`{self.label}` must be from 0 to {self.classes - 1}, got {label}")
        return label


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Return a picture with 16 bits to a pixel, which would be cut off at 255, with 8."""
    if not picture.mode.startswith("I;16"):
        return picture
    return Image.fromarray((np.asarray(picture).astype(np.uint32) // 257).astype(np.uint8))


def _on_white(picture: Image.Image) -> Image.Image:
    """Return a picture with transparent places on white: what is under them need not mean anything."""
    if not picture.has_transparency_data:
        return picture
    white = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(white, picture.convert("RGBA"))


def _viewed(images: Tensor, *, size: int, flip: bool, training: bool) -> Tensor:
    """Return pictures as numbers from 0 to 1 of the model's size: cut and mirrored at random in training."""
    images = images.float().div(255)
    side = images.shape[-1]
    if training and side > size:
        places = torch.randint(side - size + 1, (len(images), 2)).tolist()
        cuts = zip(images, places, strict=True)
        images = torch.stack([i[:, top : top + size, left : left + size] for i, (top, left) in cuts])
    elif side > size:
        images = nn.functional.interpolate(images, (size, size), mode="bilinear", antialias=True)
    if training and flip:
        mirrored = torch.rand(len(images)) < 0.5
        images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
    return images


def _loss(model: nn.Module, batch: Batch, *, view: Any) -> Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(model(view(images, training=model.training)), labels)


def _predict(model: nn.Module, batch: Batch, *, view: Any) -> tuple[Tensor, Tensor]:
    images, labels = batch
    return model(view(images, training=False)), labels
