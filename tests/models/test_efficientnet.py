"""EfficientNet-Lite0 of experiments/pretrained with its ImageNet weights."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from partita.models.start import load_start
from real_weights import MODELS, needs

FOLDER = Path(__file__).parents[2] / "experiments/pretrained"
FILE = "efficientnet_lite0.safetensors"
pytestmark = [pytest.mark.slow, needs(FILE)]


@pytest.fixture
def efficientnet(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of the model, which is beside the configs that name it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("efficientnet").EfficientNetLite0


def test_all_of_the_file_is_all_of_the_imagenet_model(efficientnet: Any) -> None:
    report = load_start(efficientnet(classes=1000), load_file(MODELS / FILE))

    assert (report.new, report.unused, report.converted) == ({}, {}, [])
    assert len(report.loaded) == len(load_file(MODELS / FILE))


def test_other_classes_leave_only_the_last_layer_out(efficientnet: Any) -> None:
    report = load_start(efficientnet(classes=107), load_file(MODELS / FILE))

    assert report.new.keys() == {"fc.weight", "fc.bias"}
    assert report.unused.keys() == {"_fc.weight", "_fc.bias"}


def test_the_imagenet_model_tells_images_apart(efficientnet: Any) -> None:
    model = efficientnet(classes=1000).eval()
    load_start(model, load_file(MODELS / FILE))
    ramp = torch.linspace(-1, 1, 64).expand(3, 64, 64)
    squares = (torch.arange(64) // 8 % 2 * 2.0 - 1).expand(3, 64, 64)

    with torch.no_grad():
        scores = model(torch.stack([ramp, squares * squares.mT]))

    assert scores.shape == (2, 1000)
    assert scores.isfinite().all()
    assert (scores.std(dim=1) > 0.1).all()
    assert (scores[0] - scores[1]).abs().max() > 0.1
