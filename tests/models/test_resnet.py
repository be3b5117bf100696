"""ResNets with GroupNorm."""

import pytest
import torch
from torch import nn

from partita import ResNet
from partita.models.norm import group_norm
from partita.models.parts import named_partition


def test_the_numbers_of_groups_are_those_of_the_paper() -> None:
    assert {c: group_norm(c).num_groups for c in (64, 128, 256, 512)} == {64: 8, 128: 8, 256: 16, 512: 32}
    # Any number of channels: narrow, odd, and those of the deepest networks.
    assert [group_norm(c).num_groups for c in (1, 7, 12, 16, 24, 2048)] == [1, 1, 1, 2, 3, 32]


@pytest.mark.parametrize(
    ("depth", "parameters"),
    # torchvision's counts for 1000 classes; GroupNorm has as many parameters as BatchNorm.
    [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160), (152, 60_192_808)],
)
def test_a_depth_has_as_many_parameters_as_torchvisions(depth: int, parameters: int) -> None:
    with torch.device("meta"):
        model = ResNet(depth=depth, classes=1000, channels=3, stem="large")

    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_depth_10_has_a_block_in_each_layer() -> None:
    model = ResNet(depth=10, width=0.25)

    assert [len(model.get_submodule(f"layer{number}")) for number in range(1, 5)] == [1, 1, 1, 1]
    assert model(torch.zeros(3, 1, 28, 28)).shape == (3, 62)


def test_bottleneck_blocks_adapt_the_3x3_convolution() -> None:
    model = ResNet(depth=50, width=0.125)
    adapted = named_partition(model, "adapter").prepare(model)

    owners = [name for name, module in adapted.named_modules() if name.endswith("adapter")]

    assert len(owners) == 3 + 4 + 6 + 3
    assert all(".conv2.adapter" in name for name in owners)
    assert adapted(torch.zeros(1, 1, 28, 28)).shape == (1, 62)


@pytest.mark.parametrize(
    ("stem", "size", "inner"),
    [("small", 28, 28), ("large", 224, 56)],
)
def test_stems_give_the_feature_size_of_the_first_layer(stem: str, size: int, inner: int) -> None:
    model = ResNet(depth=10, width=0.125, stem=stem)

    features = model.pool(model.conv1(torch.zeros(1, 1, size, size)))

    assert features.shape[2:] == (inner, inner)
    assert isinstance(model.pool, nn.Identity) is (stem == "small")


def test_convolutions_have_he_initialization() -> None:
    torch.manual_seed(0)
    model = ResNet()

    weight = model.layer4[1].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"depth": 11}, "`depth` must be one of 10, 18, 34, 50, 101, 152, got 11."),
        ({"stem": "huge"}, "`stem` must be one of small, large, got 'huge'."),
        ({"width": 0.0}, "`width` must be finite and at least 1/64, one of 64 channels, got 0.0."),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        ResNet(**settings)
