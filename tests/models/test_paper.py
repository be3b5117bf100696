"""The paper's models: exact parameter counts, and adapters that change little at first."""

import copy

import pytest
import torch
from torch import Tensor, nn

from partita import NextWordTransformer, Partition, ResNet, SpeechTransformer
from partita.models.parts import named_partition, partition_names
from partita.partition.tensors import tensors_of
from small import same_bits


def characters() -> nn.Module:
    return ResNet()


def landmarks() -> nn.Module:
    return ResNet(classes=2028, channels=3, stem="large")


COUNTS = [
    # By hand: the embedding 10004 x 256, positions 20 x 256, four blocks of 788,736, the output's bias 10004.
    (NextWordTransformer, "none", 0, 5_731_092),
    # A block: 4 x 256^2, then 256 x 1024 + 1024 + 1024 x 256 + 256, and two norms of 512.
    (NextWordTransformer, "input", 788_736, 4_942_356),
    (NextWordTransformer, "output", 788_736, 4_942_356),
    # Not the paper's: the output layer 256 x 10004 + 10004, untied from the embedding, which stays shared.
    (NextWordTransformer, "head", 2_571_028, 5_721_088),
    # Eight of 256 x 16 + 16 + 16 x 256 + 256, and eight norms of 512.
    (NextWordTransformer, "adapter", 71_808, 5_726_996),
    (NextWordTransformer, "full", 5_731_092, 5_731_092),
    (characters, "none", 0, 11_199_486),
    (characters, "input", 704, 11_198_782),
    (characters, "output", 31_806, 11_167_680),
    (characters, "head", 31_806, 11_167_680),
    # 4 x (64^2 + 128^2 + 256^2 + 512^2) + 4 x 2 x (64 + 128 + 256 + 512), and 7,808 of the model's norms.
    (characters, "adapter", 1_408_128, 11_191_678),
    (characters, "full", 11_199_486, 11_199_486),
    (landmarks, "none", 0, 12_216_876),
    (landmarks, "input", 9_536, 12_207_340),
    (landmarks, "output", 1_040_364, 11_176_512),
    (landmarks, "head", 1_040_364, 11_176_512),
    (landmarks, "adapter", 1_408_128, 12_209_068),
    (landmarks, "full", 12_216_876, 12_216_876),
    (SpeechTransformer, "none", 0, 13_386_632),
    (SpeechTransformer, "input", 814_848, 12_571_784),
    (SpeechTransformer, "output", 590_208, 12_796_424),
    (SpeechTransformer, "head", 384 * 5000 + 5000, 13_386_632 - 1_925_000),
    (SpeechTransformer, "adapter", 152_256, 13_386_632),
    (SpeechTransformer, "full", 13_386_632, 13_386_632),
]


@pytest.mark.parametrize("make", [NextWordTransformer, characters, landmarks, SpeechTransformer])
def test_counts_are_the_papers_to_the_last_digit(make: type[nn.Module]) -> None:
    model = make()
    expected = {name: (personal, shared) for maker, name, personal, shared in COUNTS if maker is make}

    counted = {
        name: tuple(
            named_partition(model, name, untie=True).partition.count(part) for part in ("personal", "shared")
        )
        for name in partition_names(model)
    }

    assert counted == expected


def small_resnet() -> nn.Module:
    return ResNet(depth=10, classes=5, width=0.25)


def small_transformer() -> nn.Module:
    return NextWordTransformer(vocabulary_size=30, max_length=6, dim=16, layers=2, heads=2, hidden=32)


def small_speech() -> nn.Module:
    return SpeechTransformer(features=6, outputs=9, dim=16, layers=2, heads=2, hidden=32)


def inputs_for(model: nn.Module) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    match model:
        case ResNet():
            size = 28 if model.conv1.kernel_size == (3, 3) else 64
            return (torch.randn(2, model.conv1.in_channels, size, size, generator=generator),)
        case NextWordTransformer():
            return (torch.randint(30, (2, 6), generator=generator),)
        case _:
            features = model.convolutions[0].in_channels
            return torch.randn(2, 30, features, generator=generator), torch.tensor([30, 21])


def output_of(model: nn.Module) -> Tensor:
    with torch.no_grad():
        output = model.eval()(*inputs_for(model))
    return output[0] if isinstance(output, tuple) else output


EVERY = [
    characters,
    landmarks,
    NextWordTransformer,
    SpeechTransformer,
    small_resnet,
    small_transformer,
    small_speech,
]


@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize("seed", [1, 2])
def test_new_adapters_change_the_output_by_less_than_one_percent(make: type[nn.Module], seed: int) -> None:
    torch.manual_seed(seed)
    model = make()
    before = output_of(model)

    adapted = named_partition(model, "adapter").prepare(copy.deepcopy(model))

    change = (output_of(adapted) - before).norm() / before.norm()
    assert 0 < change.item() < 0.01


@pytest.mark.parametrize("make", [small_resnet, small_transformer, small_speech])
def test_the_shared_state_loads_into_the_adapted_model_and_back(make: type[nn.Module]) -> None:
    plain, other = make(), make()
    partition = named_partition(plain, "adapter").partition
    adapted = partition.prepare(make())
    shared = partition.names("shared")
    assert set(shared) <= set(tensors_of(plain))

    missing = adapted.load_state_dict({name: plain.state_dict()[name] for name in shared}, strict=False)
    back = other.load_state_dict({name: adapted.state_dict()[name] for name in shared}, strict=False)

    assert not missing.unexpected_keys
    assert not back.unexpected_keys
    norms = {name for name in tensors_of(plain) if name in partition.names("personal")}
    ties = set(tensors_of(plain)) - set(Partition(plain).names("shared"))
    assert set(back.missing_keys) == norms | ties
    assert same_bits(
        {name: other.state_dict()[name] for name in shared},
        {name: plain.state_dict()[name] for name in shared},
    )


@pytest.mark.parametrize("make", [small_resnet, small_transformer, small_speech])
@pytest.mark.parametrize("training", [True, False])
def test_an_adapter_is_used_in_training_and_in_evaluation(make: type[nn.Module], training: bool) -> None:
    # In evaluation, torch has a fast path for transformer blocks that calls none of their modules.
    adapted = named_partition(make(), "adapter").prepare(make()).train(training)
    inputs = inputs_for(adapted)
    with torch.no_grad():
        before = adapted(*inputs)
        for name, parameter in adapted.named_parameters():
            if ".adapter." in name:
                parameter.add_(0.1)
        after = adapted(*inputs)

    first = (before[0], after[0]) if isinstance(before, tuple) else (before, after)
    assert not torch.allclose(*first)


def test_a_copy_of_an_adapted_model_has_adapters_of_its_own() -> None:
    adapted = named_partition(small_transformer(), "adapter").prepare(small_transformer())
    copied = copy.deepcopy(adapted)
    before = output_of(adapted)

    for name, parameter in copied.named_parameters():
        if ".adapter." in name:
            parameter.data.add_(0.1)

    assert torch.equal(output_of(adapted), before)
    assert not torch.allclose(output_of(copied), before)
