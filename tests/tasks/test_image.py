"""The image task: decoding, augmentation and bad rows."""

import json
import os
import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import nn

from partita import FedAlt, named_partition, run
from partita.data.examples import examples_of
from partita.data.rows import BadData
from partita.errors import ConfigError
from partita.tasks.image import _plain_png, image
from tables import png, write


def rows(**changes: Any) -> list[dict[str, Any]]:
    """Return the rows of three devices with six images each, of classes 0, 1 and 2."""
    return [
        {
            "device": f"d{device}",
            "split": "test" if number % 3 == 2 else "train",
            "image": png(40 * number + device),
            "label": number % 3,
            **changes,
        }
        for device in range(3)
        for number in range(6)
    ]


def test_images_and_labels_are_decoded(tmp_path: Path) -> None:
    task = image(data=str(write(tmp_path / "t.parquet", rows())), size=6)

    images, labels = task.devices["d1"]["train"]

    assert images.shape == (4, 1, 6, 6)
    assert images[:, 0, 0, 0].tolist() == [1, 41, 121, 161]
    assert labels.tolist() == [0, 1, 0, 1]
    assert task.model_options == {"classes": 3, "channels": 1, "stem": "small"}


def test_a_model_gets_values_from_0_to_1(tmp_path: Path) -> None:
    task = image(data=str(write(tmp_path / "t.parquet", rows(image=png(255)))), size=6)
    seen: list[torch.Tensor] = []
    model = Recorder(seen)

    task.loss(model, task.devices["d0"]["train"])

    assert torch.equal(seen[0], torch.ones(4, 1, 6, 6))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"mean": 0.5, "std": 0.25}, [(0.2 - 0.5) / 0.25] * 3),
        ({"mean": [0.1, 0.2, 0.4], "std": [1, 1, 2]}, [0.1, 0.0, -0.1]),
        ({"mean": "imagenet", "std": "imagenet"}, [-0.285 / 0.229, -0.256 / 0.224, -0.206 / 0.225]),
    ],
)
def test_pixels_are_normalized_in_training_and_evaluation(
    tmp_path: Path, settings: dict[str, Any], expected: list[float]
) -> None:
    # A pixel of 51 is 51 / 255 = 0.2.
    path = write(tmp_path / "t.parquet", rows(image=png(51, mode="RGB")))
    task = image(data=str(path), size=6, channels=3, crop_from=8, flip=True, **settings)
    seen: list[torch.Tensor] = []
    model = Recorder(seen)

    task.loss(model.train(), task.devices["d0"]["train"])
    task.loss(model.eval(), task.devices["d0"]["train"])
    task.predict(model.eval(), task.devices["d0"]["test"])

    assert len(seen) == 3
    for images in seen:
        for channel, value in enumerate(expected):
            assert torch.allclose(images[:, channel], torch.tensor(value), atol=1e-6)


class Recorder(nn.Module):
    """Records its inputs."""

    def __init__(self, seen: list[torch.Tensor]) -> None:
        super().__init__()
        self.head = nn.Linear(1, 3)
        self.seen = seen

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(images)
        return self.head(images.mean(dim=(1, 2, 3))[:, None])


def test_images_are_converted_to_the_given_channels_and_size(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", rows(image=png(100, size=9, mode="RGB")))

    color, _ = image(data=str(path), size=4, channels=3).devices["d0"]["train"]
    gray, _ = image(data=str(path), size=4).devices["d0"]["train"]

    assert color.shape == (4, 3, 4, 4)
    assert gray.shape == (4, 1, 4, 4)
    assert (color == 100).all()


def test_training_crops_and_flips_and_evaluation_does_not(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", rows())
    task = image(data=str(path), size=4, crop_from=6, flip=True)
    seen: list[torch.Tensor] = []
    model = Recorder(seen)
    ramp = torch.arange(36, dtype=torch.uint8).view(1, 1, 6, 6).expand(50, 1, 6, 6)
    batch = ramp, torch.zeros(50, dtype=torch.long)

    assert task.devices["d0"]["train"][0].shape == (4, 1, 6, 6)
    assert task.devices["d0"]["test"][0].shape == (2, 1, 4, 4)
    torch.manual_seed(0)
    task.loss(model.train(), batch)
    task.loss(model.eval(), batch)
    task.predict(model.eval(), batch)

    trained, evaluated, predicted = seen
    assert trained.shape == evaluated.shape == (50, 1, 4, 4)
    assert torch.equal(evaluated, predicted)
    steps = (trained[:, 0, 0, 1] - trained[:, 0, 0, 0]).mul(255).round()
    assert set(steps.tolist()) == {1.0, -1.0}
    assert (evaluated == evaluated[:1]).all()


def test_every_image_is_cropped_at_a_random_position(tmp_path: Path) -> None:
    task = image(data=str(write(tmp_path / "t.parquet", rows())), size=4, crop_from=6)
    seen: list[torch.Tensor] = []
    ramp = torch.arange(36, dtype=torch.uint8).view(1, 1, 6, 6).expand(50, 1, 6, 6)

    torch.manual_seed(0)
    task.loss(Recorder(seen).train(), (ramp, torch.zeros(50, dtype=torch.long)))

    corners = seen[0][:, 0, 0, 0].mul(255).round().unique().tolist()
    assert set(corners) <= {6.0 * top + left for top in range(3) for left in range(3)}
    assert len(corners) > 5


def test_a_run_trains_on_a_table(tmp_path: Path) -> None:
    task = image(data=str(write(tmp_path / "t.parquet", rows())), size=6)
    partition = named_partition(task.model(), "output")

    result = run(task, partition, FedAlt(shared_lr=0.05), rounds=1, devices_per_round=2)

    assert result.summary["stages"]["personalized"]["devices"] == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image": {"bytes": b"not an image", "path": None}}, "`image` cannot be decoded as an image"),
        ({"image": {"bytes": None, "path": "a.png"}}, "`image` cannot be decoded as an image"),
        ({"image": None}, "`image` is empty"),
        ({"label": None}, "`label` is empty"),
        ({"label": 7}, "`label` must be from 0 to 2, got 7"),
        ({"label": -1}, "`label` must be from 0 to 2, got -1"),
    ],
)
def test_a_bad_row_is_an_error_with_file_row_and_device(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    given = rows()
    given[7] |= change
    path = write(tmp_path / "t.parquet", given)

    with pytest.raises(BadData) as caught:
        examples_of(image(data=str(path), size=6, classes=3).devices["d1"]["train"])
    assert f"`t.parquet`, row 7, device 'd1': {reason}" in str(caught.value)
    lax = image(data=str(path), size=6, classes=3, skip_bad=True)
    assert len(examples_of(lax.devices["d1"]["train"])) == 3
    assert len(lax.skipped) == 1


def claimed_png(width: int, height: int) -> dict[str, Any]:
    """Return a PNG file whose header claims a size; its pixels are missing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    ]
    return {"bytes": b"\x89PNG\r\n\x1a\n" + b"".join(parts), "path": None}


@pytest.mark.parametrize(("width", "height"), [(13_300, 13_300), (1, 50_000_001), (100_000, 100_000)])
def test_an_image_that_is_too_large_is_refused_by_its_header(tmp_path: Path, width: int, height: int) -> None:
    path = write(tmp_path / "t.parquet", rows(image=claimed_png(width, height)))

    with pytest.raises(BadData, match="`image` has more pixels than `max_pixels` = 50000000"):
        image(data=str(path), size=6).devices["d1"]["train"]


def test_no_image_starts_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ghostscript = tmp_path / "gs"  # Pillow lets it draw EPS files.
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # It remembers what it has found.
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 6\n%%EndComments\nshowpage\n"
    path = write(tmp_path / "t.parquet", rows(image={"bytes": content, "path": None}))

    with pytest.raises(BadData, match="`image` cannot be decoded as an image"):
        image(data=str(path), size=6).devices["d1"]["train"]
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_usual_formats_are_decoded(tmp_path: Path, kind: str) -> None:
    content = BytesIO()
    Image.new("L", (6, 6), 255).save(content, kind)
    path = write(tmp_path / "t.parquet", rows(image={"bytes": content.getvalue(), "path": None}))

    batch = examples_of(image(data=str(path), size=6).devices["d1"]["train"]).batch_at(torch.tensor([0]))

    assert (batch[0] == 255).all()


def test_max_pixels_allows_larger_images_and_refuses_smaller_ones(tmp_path: Path) -> None:
    path, large = (
        write(tmp_path / "t.parquet", rows()),
        write(tmp_path / "large.parquet", rows(image=claimed_png(6, 10_000_000))),
    )

    assert len(image(data=str(path), size=6, max_pixels=36).devices["d1"]["train"][0])
    with pytest.raises(BadData, match="has more pixels than `max_pixels` = 35"):
        image(data=str(path), size=6, max_pixels=35).devices["d1"]["train"]
    with pytest.raises(BadData, match="cannot be decoded"):  # It is decoded, and has no pixels.
        image(data=str(large), size=6, max_pixels=60_000_000).devices["d1"]["train"]


def test_images_of_16_bits_are_converted_to_8(tmp_path: Path) -> None:
    content = BytesIO()
    Image.fromarray(np.full((6, 6), 257 * 100, np.uint16)).save(content, "PNG")

    task = image(
        data=str(write(tmp_path / "t.parquet", rows(image={"bytes": content.getvalue(), "path": None}))),
        size=6,
    )

    assert (task.devices["d0"]["train"][0] == 100).all()


def encoded(
    pixels: np.ndarray, *, kind: str = "PNG", mode: str | None = None, **settings: Any
) -> dict[str, Any]:
    content = BytesIO()
    decoded = Image.fromarray(pixels)
    (decoded.convert(mode) if mode else decoded).save(content, kind, **settings)
    return {"bytes": content.getvalue(), "path": None}


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_images_of_32_bits_are_bad_rows(tmp_path: Path, kind: type) -> None:
    given = rows()
    given[0]["image"] = encoded(np.full((6, 6), 1, kind), kind="TIFF")

    task = image(data=str(write(tmp_path / "t.parquet", given)), size=6, skip_bad=True)

    assert len(task.devices["d0"]["train"][0]) == 3
    assert task.skipped[0].reason == "`image` must have 8 or 16 bits per pixel, got 32"


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_white(tmp_path: Path, mode: str) -> None:
    # Black everywhere, and transparent but for the first row.
    pixels = np.zeros((6, 6, 4), np.uint8)
    pixels[0, :, 3] = 255
    if mode == "P":
        shades = np.ones((6, 6), np.uint8)
        shades[0] = 0
        content = encoded(shades, mode="P", transparency=1)
    else:
        content = encoded(pixels, mode=mode)
    path = str(write(tmp_path / "t.parquet", rows(image=content)))

    for channels in (1, 3):
        seen = image(data=path, size=6, channels=channels).devices["d0"]["train"][0]
        assert (seen[:, :, 0] == 0).all()
        assert (seen[:, :, 1:] == 255).all()


def test_the_columns_can_have_other_names(tmp_path: Path) -> None:
    given = [
        {"device": row["device"], "split": row["split"], "img": row["image"], "fine": row["label"]}
        for row in rows()
    ]
    given[7]["fine"] = -1

    task = image(data=str(write(tmp_path / "t.parquet", given)), size=6, image="img", label="fine")

    assert task.devices["d0"]["train"][1].tolist() == [0, 1, 0, 1]
    with pytest.raises(BadData, match="row 7, device 'd1': `fine` must be from 0 to 2, got -1"):
        _ = task.devices["d1"]["train"]


def test_a_bad_row_is_counted_once_however_often_it_is_read(tmp_path: Path) -> None:
    given = rows()
    given[0]["image"] = {"bytes": b"not an image", "path": None}
    task = image(data=str(write(tmp_path / "t.parquet", given)), size=6, skip_bad=True)

    for _ in range(3):
        assert len(task.devices["d0"]["train"][0]) == 3

    assert list(map(str, task.skipped)) == [
        "`t.parquet`, row 0, device 'd0': `image` cannot be decoded as an image"
    ]


def test_a_label_beyond_a_million_is_a_one_line_error(tmp_path: Path) -> None:
    given = rows()
    given[7]["label"] = 3_000_000_000

    with pytest.raises(
        ConfigError,
        match="^`t.parquet`, row 7, device 'd1': `label` is 3000000000: set `classes` to the number of classes.$",
    ):
        image(data=str(write(tmp_path / "t.parquet", given)), skip_bad=True)


def test_a_label_that_is_a_string_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`label` of `.*` must be whole numbers, got string."):
        image(data=str(write(tmp_path / "t.parquet", rows(label="cat"))))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": -1}, "`classes` must be 0 or above, got -1."),
        ({"channels": 2}, "`channels` must be 1 or 3, got 2."),
        ({"size": 0}, "`size` must be at least 1"),
        ({"size": 8, "crop_from": 4}, "at most `crop_from`, got 8 and 4."),
        ({"mean": "imagenet"}, "`mean` must be a number, a list of 1 numbers, .*, got 'imagenet'"),
        ({"mean": [0.1, 0.2], "channels": 3}, "`mean` must be a number, a list of 3 numbers"),
        ({"std": [0.1, "x", 1], "channels": 3}, "`std` must be a number"),
        ({"std": float("nan")}, "`std` must be a number"),
        ({"std": 0}, "`std` must be above 0, got 0."),
        ({"max_pixels": 0}, "`max_pixels` must be at least 1, got 0."),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        image(data="t.parquet", **settings)


def test_the_number_of_classes_can_come_from_another_run(tmp_path: Path) -> None:
    path = str(write(tmp_path / "t.parquet", rows()))
    (tmp_path / "derived.json").write_text(json.dumps({"kind": "image", "classes": 7}))

    task = image(data=path, size=6, derived=str(tmp_path / "derived.json"))

    assert image(data=path, size=6).derived == {"kind": "image", "classes": 3}
    assert task.model_options["classes"] == 7
    with pytest.raises(ValueError, match="`classes` must be 7, as the file `derived` says, got 3"):
        image(data=path, size=6, classes=3, derived=str(tmp_path / "derived.json"))


def test_the_number_of_classes_does_not_depend_on_unseen_devices(tmp_path: Path) -> None:
    # By the hash of its id, d1 is unseen.
    own = [row | ({"label": 5} if row["device"] == "d1" else {}) for row in rows()]
    data = str(write(tmp_path / "t.parquet", own))

    with pytest.raises(ConfigError, match="device 'd1': `label` is 5, which no device in training has"):
        image(data=data, size=6, unseen=0.3)

    assert image(data=data, size=6, unseen=0.3, skip_bad=True).derived["classes"] == 3
    assert image(data=data, size=6).derived["classes"] == 6


def plain_png(content: bytes, max_pixels: int = 10_000) -> Image.Image | None:
    return _plain_png(content, max_pixels)


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (28, 28), (9, 4, 3), (30, 31, 3)])
def test_a_plain_png_is_decoded_without_opening_it(shape: tuple[int, ...]) -> None:
    # Sums make smooth images, for which Pillow uses filters of PNG.
    noise = np.random.default_rng(0).integers(0, 5, shape)
    pixels = noise.cumsum(0).cumsum(1).astype(np.uint8)

    decoded = plain_png(encoded(pixels)["bytes"])

    assert decoded is not None
    assert np.array_equal(np.asarray(decoded), pixels)


def test_other_content_is_left_to_pillow() -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    comment = PngInfo()
    comment.add_text("a", "b")

    assert plain_png(b"") is None
    assert plain_png(encoded(pixels)["bytes"], max_pixels=pixels.shape[0] * pixels.shape[1] - 1) is None
    assert plain_png(b"\0" * 100) is None
    assert plain_png(encoded(pixels)["bytes"] + b"\0") is None
    assert plain_png(encoded(pixels, pnginfo=comment)["bytes"]) is None
    assert plain_png(encoded(pixels, transparency=(0, 1, 2))["bytes"]) is None
    assert plain_png(encoded(np.zeros((4, 4, 4), np.uint8))["bytes"]) is None
    assert plain_png(encoded(np.zeros((4, 4), np.uint16))["bytes"]) is None


def test_a_damaged_png_is_left_to_pillow() -> None:
    content = encoded(np.arange(36, dtype=np.uint8).reshape(6, 6))["bytes"]

    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        assert plain_png(bytes(damaged)) is None
        assert plain_png(content[:position]) is None
