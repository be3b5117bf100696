"""Channels-last format: which models compute in it, and that nothing else changes."""

import itertools
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from partita import FedAlt, FedAvg, Method, Partition, ResNet, Steps, Task, accuracy, descend, run
from partita.device.memory_format import channels_last, use_channels_last
from partita.models.convnet import ConvNet
from small import same_bits


class Net(nn.Module):
    """A network with code of its own, which may do anything with images."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(36, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(functional.max_pool2d(self.convolution(images), 2).view(-1, 36))


class OwnConvolution(nn.Conv2d):
    """A convolution with a `forward` of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).view(len(input), -1)


def network(*, channels: int = 3, norm: nn.Module | None = None) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(channels, 4, 3, padding=1), norm or nn.Identity(), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(36, 2)),
    )


def normed() -> nn.Module:
    return network(norm=nn.BatchNorm2d(4))


def hooked() -> nn.Module:
    model = network()
    model[0].register_forward_hook(lambda module, given, found: found.view(found.shape))  # pyright: ignore[reportIndexIssue]
    return model


def replaced(model: nn.Module) -> nn.Module:
    first = next(model.children())
    convolve = first.forward
    first.forward = lambda images: convolve(images).view(len(images), 4, 6, 6)
    return model


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def task_of(model: Callable[[], nn.Module], loss: Any = loss_of) -> Task:
    generator = torch.Generator().manual_seed(3)

    def split(examples: int) -> tuple[Tensor, Tensor]:
        images = torch.randn(examples, 3, 6, 6, generator=generator)
        return images, torch.randint(2, (examples,), generator=generator)

    devices = {name: {"train": split(8), "test": split(5)} for name in "abc"}
    return Task(model=model, loss=loss, metrics={"accuracy": accuracy}, devices=devices)


def is_last(images: Tensor) -> bool:
    """Return whether the channels of a pixel are beside each other, also where there is only one."""
    return images.stride()[1] == 1 and images.stride()[3] == images.shape[1]


@pytest.mark.parametrize("channels", [1, 3])
def test_only_the_order_in_memory_changes(channels: int) -> None:
    images = torch.randn(5, channels, 4, 6)

    found = channels_last(images)

    assert is_last(found)
    assert torch.equal(found, images)
    assert channels_last("text") == "text"
    assert channels_last(images[0]).is_contiguous()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(network, True, id="convolutions"),
        pytest.param(lambda: network(channels=1), True, id="one channel"),
        pytest.param(lambda: network(norm=nn.BatchNorm2d(4)), True, id="BatchNorm"),
        pytest.param(lambda: network(norm=nn.Dropout2d(0.2)), True, id="dropout"),
        pytest.param(ConvNet, True, id="the quickstart's"),
        pytest.param(lambda: nn.Sequential(*network().children()), True, id="in a sequence"),
        pytest.param(
            lambda: nn.Sequential(network()[:4], nn.Flatten(), Net()), True, id="anything once flat"
        ),
        pytest.param(Net, False, id="a class"),
        pytest.param(lambda: network(norm=nn.GroupNorm(2, 4)), False, id="GroupNorm"),
        pytest.param(lambda: ResNet(depth=10, width=0.25), False, id="ResNet, with GroupNorm"),
        pytest.param(lambda: nn.Sequential(OwnConvolution(3, 4, 3), nn.Linear(64, 2)), False, id="own layer"),
        pytest.param(
            lambda: nn.Sequential(nn.ReLU(inplace=True), *network().children()), False, id="changes its input"
        ),
        pytest.param(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 2)), False, id="never flat"),
        pytest.param(
            lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(2), nn.Linear(16, 2)), False, id="half flat"
        ),
        pytest.param(hooked, False, id="hooks"),
        pytest.param(lambda: nn.Sequential(nn.Flatten(), nn.Linear(108, 2)), False, id="no convolution"),
        pytest.param(lambda: replaced(network()), False, id="a layer's forward replaced"),
    ],
)
def test_a_model_uses_it_if_all_that_it_does_with_images_is_known(
    make: Callable[[], nn.Module], expected: bool
) -> None:
    model = make()

    assert use_channels_last(model) is expected
    assert bool(model._forward_pre_hooks) is expected


def test_inputs_are_left_alone_where_code_of_the_task_could_see_it() -> None:
    model, seen = network(), list[bool]()
    use_channels_last(model)
    images = torch.randn(4, 3, 6, 6)

    with torch.no_grad():
        handle = model[0].register_forward_pre_hook(lambda _, given: seen.append(is_last(given[0])))  # pyright: ignore[reportIndexIssue]
        model(images)
        handle.remove()
    (gradient,) = torch.autograd.grad(model(found := images.clone().requires_grad_()).sum(), found)
    mapped = torch.func.vmap(lambda image: model(image[None])[0], randomness="same")(images)

    assert seen == [False]
    assert gradient.is_contiguous()
    assert torch.allclose(mapped, model(images), atol=1e-6)


def test_a_model_that_computes_in_the_format_can_be_pickled() -> None:
    model = network()
    use_channels_last(model)

    assert pickle.loads(pickle.dumps(model))(torch.ones(1, 3, 6, 6)).shape == (1, 2)


def test_a_model_sees_the_format_and_the_tasks_code_does_not() -> None:
    seen: dict[str, list[bool]] = {"task": [], "model": []}

    def watched() -> nn.Module:
        model = network()
        convolve = model[0]._conv_forward  # pyright: ignore[reportIndexIssue]

        def watch(images: Tensor, *others: Any) -> Tensor:
            seen["model"].append(is_last(images))
            return convolve(images, *others)

        model[0]._conv_forward = watch  # pyright: ignore[reportIndexIssue]
        return model

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen["task"].append(is_last(batch[0]))
        assert batch[0].view(len(batch[0]), -1).shape[1] == 108
        return loss_of(model, batch)

    run(task_of(watched, loss), Partition(network()), FedAvg(shared_lr=0.1, batch_size=4), rounds=1)

    # The first calls check the task, before any visit.
    assert seen["model"][-10:] == [True] * 10
    assert not any(seen["task"])


def test_an_update_of_ones_own_gets_gradients_in_the_usual_format() -> None:
    shapes: list[tuple[int, ...]] = []

    class Flat:
        def __init__(self, *, personal: Steps, shared: Steps) -> None:
            self.shared = shared

        def __call__(
            self, model: nn.Module, partition: Partition, batches: Iterable[Any], loss: Any
        ) -> Sequence[float]:
            value = loss(model, next(iter(batches)))
            gradients = torch.autograd.grad(value, list(model.parameters()))
            shapes.extend(tuple(gradient.view(-1).shape) for gradient in gradients)
            return descend({"shared": self.shared}, model, partition, batches, loss)

    run(task_of(network), Partition(network()), Method(local=Flat, batch_size=4), rounds=1)  # pyright: ignore[reportArgumentType]

    assert shapes


def test_training_agrees_with_a_loop_in_the_usual_format() -> None:
    task = task_of(normed)
    method = FedAvg(shared_lr=0.1, batch_size=8)
    initial = run(task, Partition(normed()), FedAvg(shared_lr=0.0, batch_size=8), rounds=1).model("a")
    expected = normed()
    expected.load_state_dict(initial.state_dict())

    result = run(task, Partition(normed()), method, rounds=1, devices_per_round=1)

    (device,) = next(line for line in result.rounds if line["work"] == "update")["asked"]
    loss_of(expected.train(), task.devices[device]["train"]).backward()
    with torch.no_grad():
        for parameter in expected.parameters():
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-0.1)
    for name, parameter in expected.named_parameters():
        assert torch.allclose(result.shared[name], parameter, atol=1e-6), name


@pytest.mark.parametrize("settings", [{"workers": 2}, {"workers": 3}, {"reuse": False}])
def test_results_have_the_same_bits_with_workers_and_without_reuse(settings: dict[str, Any]) -> None:
    task, partition = task_of(normed), Partition(normed(), personal="5.*", frozen="0.*")
    method = FedAlt(shared_lr=0.1, batch_size=4, personal_epochs=3)

    one = run(task, partition, method, rounds=2)
    other = run(task, partition, method, rounds=2, **settings)

    assert same_bits(one.shared, other.shared)
    assert same_bits(one.personal("a"), other.personal("a"))


LAYERS: Mapping[str, Callable[[int], nn.Module]] = {
    "convolution": lambda c: nn.Conv2d(c, 4, 3, padding=1),
    "1x1 convolution": lambda c: nn.Conv2d(c, 8, 1, bias=False),
    "strided convolution": lambda c: nn.Conv2d(c, 8, 3, stride=2),
    "depthwise convolution": lambda c: nn.Conv2d(c, c, 3, padding=1, groups=c),
    "transposed convolution": lambda c: nn.ConvTranspose2d(c, 4, 2, 2),
    "BatchNorm": nn.BatchNorm2d,
    "BatchNorm, frozen": lambda c: nn.BatchNorm2d(c).eval(),
    "max pooling": lambda c: nn.MaxPool2d(2),
    "average pooling": lambda c: nn.AvgPool2d(2),
    "adaptive pooling": lambda c: nn.AdaptiveAvgPool2d(3),
    "global pooling": lambda c: nn.AdaptiveAvgPool2d(1),
    **{
        kind.__name__: lambda c, kind=kind: kind()
        for kind in (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU, nn.Hardswish, nn.ReLU6, nn.Sigmoid)
    },
    "padding": lambda c: nn.ZeroPad2d(1),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_agree_in_both_formats_whatever_moves(layer: str) -> None:
    for channels, (count, size) in itertools.product((1, 3, 8), ((1, 8), (5, 6), (2, 7))):
        torch.manual_seed(1)
        module = LAYERS[layer](channels)
        weights = list(module.parameters())
        images, pull = torch.randn(count, channels, size, size), torch.randn(1)
        for moves in itertools.product((False, True), repeat=len(weights) + 1):
            plain = _gradients(module, images, moves, pull)
            last = _gradients(module, channels_last(images), moves, pull)

            for one, other in zip(plain, last, strict=True):
                assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def _gradients(
    module: nn.Module, images: Tensor, moves: tuple[bool, ...], pull: Tensor
) -> tuple[Tensor, ...]:
    """Return what a module returns, and the gradients of what moves: its parameters, and its input."""
    images = images.detach().requires_grad_(moves[-1])
    for weight, moving in zip(module.parameters(), moves, strict=False):
        weight.requires_grad_(moving)
    found = module(images)
    moving = [tensor for tensor in (*module.parameters(), images) if tensor.requires_grad]
    factors = torch.linspace(-1, 1, found.numel()).view(found.shape)
    gradients = torch.autograd.grad((found * factors * pull).sum(), moving) if moving else ()
    return found.detach(), *gradients
