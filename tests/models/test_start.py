"""Beginning from a file: what is loaded, what is new and what is left over."""

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from partita import NextWordTransformer, ResNet
from partita.models.start import load_start


def imagenet_resnet18() -> dict[str, Tensor]:
    """The names and shapes of torchvision's ResNet-18, each tensor filled with a number of its own."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7)}

    def add_norm(name: str, channels: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (channels,)
        shapes[f"{name}.num_batches_tracked"] = ()

    add_norm("bn1", 64)
    entering = 64
    for number, channels in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            for place in (1, 2):
                shapes[f"layer{number}.{block}.conv{place}.weight"] = (channels, entering, 3, 3)
                add_norm(f"layer{number}.{block}.bn{place}", channels)
                entering_block, entering = entering, channels
                if place == 1 and block == 0 and number > 1:
                    shapes[f"layer{number}.0.downsample.0.weight"] = (channels, entering_block, 1, 1)
                    add_norm(f"layer{number}.0.downsample.1", channels)
    shapes["fc.weight"], shapes["fc.bias"] = (1000, 512), (1000,)
    assert len(shapes) == 122
    return {
        name: torch.full(shape, float(place)) for place, (name, shape) in enumerate(shapes.items(), start=1)
    }


def test_an_imagenet_resnet_with_batchnorm_loads_into_the_one_with_groupnorm() -> None:
    tensors = imagenet_resnet18()
    model = ResNet(classes=2028, channels=3, stem="large")

    account = load_start(model, tensors)

    # 20 convolutions with a norm's weight and bias each; of a norm three statistics have no place.
    assert len(account.loaded) == 20 * 3
    assert len(account.left_over) == 20 * 3 + 2
    assert account.new == {
        "fc.weight": "1000x512 in the file, 2028x512 here",
        "fc.bias": "1000 in the file, 2028 here",
    }
    state = model.state_dict()
    for name, given in account.loaded.items():
        assert given == name.replace("norm", "bn")
        assert torch.equal(state[name], tensors[given])
    assert account.lines() == [
        "60 loaded",
        "2 new (`fc.weight`: 1000x512 in the file, 2028x512 here; `fc.bias`: 1000 in the file, 2028 here)",
        "62 left over (`bn1.num_batches_tracked`, `bn1.running_mean`, `bn1.running_var`, ...: no such name in "
        "the model; `fc.bias`: 1000 in the file, 2028 here; `fc.weight`: 1000x512 in the file, 2028x512 here)",
    ]


def test_grey_images_and_a_small_stem_keep_their_own_first_convolution() -> None:
    account = load_start(ResNet(), imagenet_resnet18())

    assert set(account.new) == {"conv1.weight", "fc.weight", "fc.bias"}


def test_names_are_mapped_by_the_user_first() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    file = {"module.encoder.weight": torch.ones(2, 2), "module.encoder.bias": torch.zeros(2)}

    account = load_start(model, file, {"^module[.]": "", "encoder": "0"})

    assert account.loaded == {"0.weight": "module.encoder.weight", "0.bias": "module.encoder.bias"}
    assert not account.new
    assert not account.left_over
    assert str(account) == "2 loaded, 0 new, 0 left over"
    assert torch.equal(model[0].weight, torch.ones(2, 2))


@pytest.mark.parametrize("name", ["embedding.weight", "head.weight"])
def test_a_tied_tensor_loads_under_any_of_its_names(name: str) -> None:
    model = NextWordTransformer(vocabulary=5, length=2, dim=4, layers=1, heads=1, hidden=4)

    account = load_start(model, {name: torch.ones(5, 4)})

    assert account.loaded == {"embedding.weight": name}
    assert torch.equal(model.head.weight, torch.ones(5, 4))
    assert "head.weight" not in account.new


def test_two_values_for_one_tensor_are_refused() -> None:
    model = NextWordTransformer(vocabulary=5, length=2, dim=4, layers=1, heads=1, hidden=4)
    file = {"embedding.weight": torch.ones(5, 4), "head.weight": torch.zeros(5, 4)}

    with pytest.raises(ValueError, match="`embedding.weight` and `head.weight` of the file would both be"):
        load_start(model, file)
    assert load_start(model, {**file, "head.weight": torch.ones(5, 4)}).loaded == {
        "embedding.weight": "embedding.weight"
    }


def test_a_file_of_which_nothing_fits_is_refused() -> None:
    file = {"a": torch.zeros(1), "weight": torch.zeros(3, 2)}

    with pytest.raises(ValueError, match="No tensor of the file fits Linear: 0 loaded, 2 new ") as caught:
        load_start(nn.Linear(2, 2), file)
    assert "`weight`: 3x2 in the file, 2x2 here; `bias`: not in the file" in str(caught.value)
    assert "`a`: no such name in the model" in str(caught.value)


def test_a_models_own_names_come_before_what_it_is_called_elsewhere() -> None:
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
        (torch.ones(2, 2, dtype=torch.int64), "int64 in the file, float32 here"),
        (torch.ones(2, 2, dtype=torch.complex64), "complex64 in the file, float32 here"),
    ],
)
def test_numbers_that_are_no_weights_are_left_over(tensor: Tensor, why: str) -> None:
    account = load_start(nn.Linear(2, 2), {"weight": tensor, "bias": torch.zeros(2)})

    assert account.left_over == account.new == {"weight": why}


def test_a_tied_tensor_that_does_not_fit_is_told_once() -> None:
    model = NextWordTransformer(vocabulary=5, length=2, dim=4, layers=1, heads=1, hidden=4)
    file = {"head.weight": torch.ones(7, 4), "head.bias": torch.zeros(5)}

    account = load_start(model, file)

    assert account.new["embedding.weight"] == "7x4 in the file, 5x4 here"
    assert "head.weight" not in account.new


def test_a_pattern_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=r"'\(' = '' cannot rename 'weight': missing"):
        load_start(nn.Linear(2, 2), {"weight": torch.zeros(2, 2)}, {"(": ""})


def test_half_precision_is_brought_to_the_models() -> None:
    model = nn.Linear(2, 2)

    load_start(model, {"weight": torch.ones(2, 2, dtype=torch.float16)})

    assert model.weight.dtype == torch.float32
    assert torch.equal(model.weight, torch.ones(2, 2))
