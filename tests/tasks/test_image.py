"""The image task: pictures of any kind, seen whole in evaluation and cut in training."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from partita import FedAlt, named_partition, run
from partita.data.examples import examples_of
from partita.data.rows import BadData
from partita.errors import ConfigError
from partita.tasks.image import image
from tables import png, write


def rows(**changes: Any) -> list[dict[str, Any]]:
    """Three devices of six pictures, of classes 0, 1 and 2."""
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


def test_pictures_and_labels_come_out_as_they_went_in(tmp_path: Path) -> None:
    task = image(data=str(write(tmp_path / "t.parquet", rows())), size=6)

    images, labels = task.devices["d1"]["train"]

    assert images.shape == (4, 1, 6, 6)
    assert images[:, 0, 0, 0].tolist() == [1, 41, 121, 161]
    assert labels.tolist() == [0, 1, 0, 1]
    assert task.model_options == {"classes": 3, "channels": 1, "stem": "small"}


def test_a_model_sees_numbers_from_0_to_1(tmp_path: Path) -> None:
    task = image(data=str(write(tmp_path / "t.parquet", rows(image=png(255)))), size=6)
    seen: list[torch.Tensor] = []
    model = Recorder(seen)

    task.loss(model, task.devices["d0"]["train"])

    assert torch.equal(seen[0], torch.ones(4, 1, 6, 6))


class Recorder(nn.Module):
    """Remembers what goes in."""

    def __init__(self, seen: list[torch.Tensor]) -> None:
        super().__init__()
        self.head = nn.Linear(1, 3)
        self.seen = seen

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(images)
        return self.head(images.mean(dim=(1, 2, 3))[:, None])


def test_colour_and_size_are_brought_to_what_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", rows(image=png(100, side=9, mode="RGB")))

    color, _ = image(data=str(path), size=4, channels=3).devices["d0"]["train"]
    gray, _ = image(data=str(path), size=4).devices["d0"]["train"]

    assert color.shape == (4, 3, 4, 4)
    assert gray.shape == (4, 1, 4, 4)
    assert (color == 100).all()


def test_training_cuts_and_mirrors_and_evaluation_does_not(tmp_path: Path) -> None:
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


def test_every_picture_is_cut_in_a_place_of_its_own_draw(tmp_path: Path) -> None:
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

    assert result.summary["stages"]["personalised"]["devices"] == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": {"bytes": b"no picture", "path": None}}, "`image` is not a picture that can be decoded"),
        ({"image": {"bytes": None, "path": "a.png"}}, "`image` is not a picture that can be decoded"),
        ({"image": None}, "`image` is empty"),
        ({"label": None}, "`label` is empty"),
        ({"label": 7}, "`label` must be from 0 to 2, got 7"),
        ({"label": -1}, "`label` must be from 0 to 2, got -1"),
    ],
)
def test_a_bad_row_is_named_by_file_row_and_device(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    given = rows()
    given[7] |= change
    path = write(tmp_path / "t.parquet", given)

    with pytest.raises(BadData) as caught:
        examples_of(image(data=str(path), size=6, classes=3).devices["d1"]["train"])
    assert f"`t.parquet`, row 7, device 'd1': {words}" in str(caught.value)
    lax = image(data=str(path), size=6, classes=3, skip_bad=True)
    assert len(examples_of(lax.devices["d1"]["train"])) == 3
    assert len(lax.skipped) == 1


def test_pictures_of_16_bits_are_brought_to_8(tmp_path: Path) -> None:
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
    picture = Image.fromarray(pixels)
    (picture.convert(mode) if mode else picture).save(content, kind, **settings)
    return {"bytes": content.getvalue(), "path": None}


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_pictures_of_32_bits_are_bad_rows(tmp_path: Path, kind: type) -> None:
    given = rows()
    given[0]["image"] = encoded(np.full((6, 6), 1, kind), kind="TIFF")

    task = image(data=str(write(tmp_path / "t.parquet", given)), size=6, skip_bad=True)

    assert len(task.devices["d0"]["train"][0]) == 3
    assert task.skipped[0].reason == "`image` has 32 bits to a pixel, give 8 or 16"


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_places_are_white(tmp_path: Path, mode: str) -> None:
    # Black everywhere, and nothing of it to be seen but for the first row.
    pixels = np.zeros((6, 6, 4), np.uint8)
    pixels[0, :, 3] = 255
    if mode == "P":
        shades = np.ones((6, 6), np.uint8)
        shades[0] = 0
        picture = encoded(shades, mode="P", transparency=1)
    else:
        picture = encoded(pixels, mode=mode)
    path = str(write(tmp_path / "t.parquet", rows(image=picture)))

    for channels in (1, 3):
        seen = image(data=path, size=6, channels=channels).devices["d0"]["train"][0]
        assert (seen[:, :, 0] == 0).all()
        assert (seen[:, :, 1:] == 255).all()


def test_columns_of_content_can_have_other_names(tmp_path: Path) -> None:
    given = [
        {"device": row["device"], "split": row["split"], "img": row["image"], "fine": row["label"]}
        for row in rows()
    ]
    given[7]["fine"] = -1

    task = image(data=str(write(tmp_path / "t.parquet", given)), size=6, image="img", label="fine")

    assert task.devices["d0"]["train"][1].tolist() == [0, 1, 0, 1]
    with pytest.raises(BadData, match="row 7, device 'd1': `fine` must be from 0 to 2, got -1"):
        _ = task.devices["d1"]["train"]


def test_a_bad_row_is_counted_once_however_often_it_is_met(tmp_path: Path) -> None:
    given = rows()
    given[0]["image"] = {"bytes": b"no picture", "path": None}
    task = image(data=str(write(tmp_path / "t.parquet", given)), size=6, skip_bad=True)

    for _ in range(3):
        assert len(task.devices["d0"]["train"][0]) == 3

    assert list(map(str, task.skipped)) == [
        "`t.parquet`, row 0, device 'd0': `image` is not a picture that can be decoded"
    ]


def test_a_label_beyond_all_classes_is_one_line(tmp_path: Path) -> None:
    given = rows()
    given[7]["label"] = 3_000_000_000

    with pytest.raises(
        ConfigError,
        match="^`t.parquet`, row 7, device 'd1': `label` is 3000000000: say how many `classes`.$",
    ):
        image(data=str(write(tmp_path / "t.parquet", given)), skip_bad=True)


def test_a_label_that_is_a_text_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`label` of `.*` must be whole numbers, got string."):
        image(data=str(write(tmp_path / "t.parquet", rows(label="cat"))))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"classes": -1}, "`classes` must be 0 or above, got -1."),
        ({"channels": 2}, "`channels` must be 1 or 3, got 2."),
        ({"size": 0}, "`size` must be at least 1"),
        ({"size": 8, "crop_from": 4}, "at most `crop_from`, got 8 and 4."),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        image(data="t.parquet", **settings)
