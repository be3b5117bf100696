"""Loading pretrained tensors: loaded, new and unused ones."""

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from partita import NextWordTransformer, ResNet
from partita.models.start import load_start


def imagenet_resnet18() -> dict[str, Tensor]:
    """Return tensors with the names and shapes of torchvision's ResNet-18, each with a value of its own."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7)}

    def add_norm(name: str, channels: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (channels,)
        shapes[f"{name}.num_batches_tracked"] = ()

    add_norm("bn1", 64)
    entering = 64
    for number, channels in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            for number_in_block in (1, 2):
                shapes[f"layer{number}.{block}.conv{number_in_block}.weight"] = (channels, entering, 3, 3)
                add_norm(f"layer{number}.{block}.bn{number_in_block}", channels)
                entering_block, entering = entering, channels
                if number_in_block == 1 and block == 0 and number > 1:
                    shapes[f"layer{number}.0.downsample.0.weight"] = (channels, entering_block, 1, 1)
                    add_norm(f"layer{number}.0.downsample.1", channels)
    shapes["fc.weight"], shapes["fc.bias"] = (1000, 512), (1000,)
    assert len(shapes) == 122
    return {
        name: torch.full(shape, float(value)) for value, (name, shape) in enumerate(shapes.items(), start=1)
    }


def test_an_imagenet_resnet_with_batchnorm_loads_into_the_one_with_groupnorm() -> None:
    tensors = imagenet_resnet18()
    model = ResNet(classes=2028, channels=3, stem="large")

    report = load_start(model, tensors)

    # 20 convolutions, each with a norm's weight and bias; three statistics of each norm are unused.
    assert len(report.loaded) == 20 * 3
    assert len(report.unused) == 20 * 3 + 2
    assert report.new == {
        "fc.weight": "1000x512 in the file, 2028x512 in the model",
        "fc.bias": "1000 in the file, 2028 in the model",
    }
    state = model.state_dict()
    for name, given in report.loaded.items():
        assert given == name.replace("norm", "bn")
        assert torch.equal(state[name], tensors[given])
    assert report.lines() == [
        "60 loaded",
        "2 new (`fc.weight`: 1000x512 in the file, 2028x512 in the model; `fc.bias`: 1000 in the file, 2028 in the model)",
        "62 unused (`bn1.num_batches_tracked`, `bn1.running_mean`, `bn1.running_var`, ...: no such name in "
        "the model; `fc.bias`: 1000 in the file, 2028 in the model; `fc.weight`: 1000x512 in the file, 2028x512 in the model)",
    ]


def test_for_gray_images_and_a_small_stem_the_first_convolution_is_new() -> None:
    report = load_start(ResNet(), imagenet_resnet18())

    assert set(report.new) == {"conv1.weight", "fc.weight", "fc.bias"}


def test_names_are_mapped_by_the_user_first() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    file = {"module.encoder.weight": torch.ones(2, 2), "module.encoder.bias": torch.zeros(2)}

    report = load_start(model, file, {"^module[.]": "", "encoder": "0"})

    assert report.loaded == {"0.weight": "module.encoder.weight", "0.bias": "module.encoder.bias"}
    assert not report.new
    assert not report.unused
    assert str(report) == "2 loaded, 0 new, 0 unused"
    assert torch.equal(model[0].weight, torch.ones(2, 2))


@pytest.mark.parametrize("name", ["embedding.weight", "head.weight"])
def test_a_tied_tensor_loads_under_any_of_its_names(name: str) -> None:
    model = NextWordTransformer(vocabulary_size=5, max_length=2, dim=4, layers=1, heads=1, hidden=4)

    report = load_start(model, {name: torch.ones(5, 4)})

    assert report.loaded == {"embedding.weight": name}
    assert torch.equal(model.head.weight, torch.ones(5, 4))
    assert "head.weight" not in report.new


def test_two_values_for_one_tensor_are_refused() -> None:
    model = NextWordTransformer(vocabulary_size=5, max_length=2, dim=4, layers=1, heads=1, hidden=4)
    file = {"embedding.weight": torch.ones(5, 4), "head.weight": torch.zeros(5, 4)}

    with pytest.raises(ValueError, match="`embedding.weight` and `head.weight` of the file both match"):
        load_start(model, file)
    assert load_start(model, {**file, "head.weight": torch.ones(5, 4)}).loaded == {
        "embedding.weight": "embedding.weight"
    }


def test_a_file_without_matching_tensors_is_refused() -> None:
    file = {"a": torch.zeros(1), "weight": torch.zeros(3, 2)}

    with pytest.raises(ValueError, match="No tensor of the file matches Linear: 0 loaded, 2 new ") as caught:
        load_start(nn.Linear(2, 2), file)
    assert "`weight`: 3x2 in the file, 2x2 in the model; `bias`: not in the file" in str(caught.value)
    assert "`a`: no such name in the model" in str(caught.value)


def test_the_models_own_names_come_before_its_other_names() -> None:
    class Prefixed(nn.Module):
        other_names: ClassVar = {"^": "body."}

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(2, 2)

    bare, own = nn.Linear(2, 2).state_dict(), Prefixed().state_dict()

    assert load_start(Prefixed(), bare).loaded == {"body.weight": "weight", "body.bias": "bias"}
    assert load_start(Prefixed(), own).loaded == {"body.weight": "body.weight", "body.bias": "body.bias"}


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (torch.full((2, 2), float("nan")), "not finite in the file"),
        (torch.ones(2, 2, dtype=torch.int64), "int64 in the file, float32 in the model"),
        (torch.ones(2, 2, dtype=torch.complex64), "complex64 in the file, float32 in the model"),
    ],
)
def test_values_that_are_not_weights_are_unused(tensor: Tensor, why: str) -> None:
    report = load_start(nn.Linear(2, 2), {"weight": tensor, "bias": torch.zeros(2)})

    assert report.unused == report.new == {"weight": why}


def test_a_tied_tensor_that_does_not_match_is_reported_once() -> None:
    model = NextWordTransformer(vocabulary_size=5, max_length=2, dim=4, layers=1, heads=1, hidden=4)
    file = {"head.weight": torch.ones(7, 4), "head.bias": torch.zeros(5)}

    report = load_start(model, file)

    assert report.new["embedding.weight"] == "7x4 in the file, 5x4 in the model"
    assert "head.weight" not in report.new


def test_an_invalid_pattern_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"'\(' = '' cannot rename 'weight': missing"):
        load_start(nn.Linear(2, 2), {"weight": torch.zeros(2, 2)}, {"(": ""})


def test_half_precision_is_converted_to_the_models_precision() -> None:
    model = nn.Linear(2, 2)

    load_start(model, {"weight": torch.ones(2, 2, dtype=torch.float16)})

    assert model.weight.dtype == torch.float32
    assert torch.equal(model.weight, torch.ones(2, 2))
