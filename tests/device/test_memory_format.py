"""Channels-last batches: which models get them, and that nothing but the order in memory changes."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita import FedAlt, FedAvg, Partition, ResNet, Task, accuracy, run
from partita.data.examples import TensorExamples
from partita.device.memory_format import ChannelsLast, channels_last, computes_channels_last
from partita.models.convnet import ConvNet
from small import same_bits


class Viewing(nn.Module):
    """Calls `view` on the output of a convolution, which needs the usual strides."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4 * 6 * 6, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.convolution(images).view(len(images), -1))


class Striding(Viewing):
    """Reads memory in a fixed order, whatever it holds."""

    def forward(self, images: Tensor) -> Tensor:
        found = self.convolution(images)
        return self.head(torch.as_strided(found, (len(images), 144), (144, 1)))


def network(*, channels: int = 3, norm: nn.Module | None = None) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(channels, 4, 3, padding=1), norm or nn.Identity(), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(4 * 3 * 3, 2)),
    )


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def task_of(model: Callable[[], nn.Module], *, channels: int = 3, size: int = 6, count: int = 8) -> Task:
    generator = torch.Generator().manual_seed(3)

    def split(examples: int) -> tuple[Tensor, Tensor]:
        images = torch.randn(examples, channels, size, size, generator=generator)
        return images, torch.randint(2, (examples,), generator=generator)

    devices = {name: {"train": split(count), "test": split(5)} for name in "abc"}
    return Task(model=model, loss=loss_of, metrics={"accuracy": accuracy}, devices=devices)


def is_last(images: Tensor) -> bool:
    """Return whether the channels of a pixel are beside each other, also where there is only one."""
    return images.stride()[1] == 1 and images.stride()[3] == images.shape[1]


@pytest.mark.parametrize("channels", [1, 3])
def test_only_the_order_in_memory_changes(channels: int) -> None:
    images, labels = torch.randn(5, channels, 4, 6), torch.arange(5)
    examples = ChannelsLast(TensorExamples((images, labels)))

    found, same = examples.batch_at(torch.tensor([3, 1]))

    assert is_last(found)
    assert torch.equal(found, images[[3, 1]])
    assert torch.equal(same, labels[[3, 1]])
    assert len(examples) == 5


def test_images_are_found_in_nested_batches() -> None:
    images = torch.randn(2, 3, 4, 4)

    found = channels_last({"pair": [images, (images, "text")], "sequence": torch.randn(2, 3, 4)})

    assert is_last(found["pair"][0])
    assert is_last(found["pair"][1][0])
    assert found["pair"][1][1] == "text"
    assert found["sequence"].is_contiguous()


@pytest.mark.parametrize(
    ("model", "channels", "expected"),
    [
        pytest.param(network, 3, True, id="convolutions"),
        pytest.param(lambda: network(channels=1), 1, True, id="one channel"),
        pytest.param(lambda: network(norm=nn.BatchNorm2d(4)), 3, True, id="BatchNorm"),
        pytest.param(lambda: network(norm=nn.Dropout2d(0.2)), 3, True, id="dropout"),
        pytest.param(lambda: ConvNet(size=6), 1, True, id="the quickstart's"),
        pytest.param(lambda: network(norm=nn.GroupNorm(2, 4)), 3, False, id="GroupNorm"),
        pytest.param(lambda: ResNet(depth=10, width=0.25, channels=3), 3, False, id="ResNet, with GroupNorm"),
        pytest.param(Viewing, 3, False, id="view"),
        pytest.param(Striding, 3, False, id="as_strided"),
        pytest.param(lambda: nn.Sequential(nn.Flatten(), nn.Linear(108, 2)), 3, False, id="no convolution"),
    ],
)
def test_a_model_gets_them_if_all_that_it_does_with_images_is_known(
    model: Callable[[], nn.Module], channels: int, expected: bool
) -> None:
    assert computes_channels_last(task_of(model, channels=channels), model(), seed=1) is expected


def test_a_trial_leaves_model_and_random_numbers_as_they_were() -> None:
    model = network(norm=nn.BatchNorm2d(4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)

    torch.manual_seed(5)
    computes_channels_last(task_of(network), model.train(), seed=1)

    assert torch.equal(torch.rand(3), expected)
    assert same_bits(model.state_dict(), before)
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_device_without_training_examples_decides_nothing() -> None:
    task = task_of(network, count=0)

    assert not computes_channels_last(task, network(), seed=1)


def test_a_failing_task_keeps_its_format() -> None:
    def failing(model: nn.Module, batch: Any) -> Tensor:
        raise RuntimeError("No loss today.")

    task = Task(model=network, loss=failing, metrics={"accuracy": accuracy}, devices=task_of(network).devices)

    assert not computes_channels_last(task, network(), seed=1)


@pytest.mark.parametrize("model", [network, Viewing])
def test_visits_give_batches_in_the_format_that_the_model_can_take(model: Callable[[], nn.Module]) -> None:
    seen: list[bool] = []

    def loss(own: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(is_last(batch[0]))
        return loss_of(own, batch)

    task = task_of(model)
    task.loss = loss
    run(task, Partition(model()), FedAvg(shared_lr=0.1, batch_size=4), rounds=1, reuse=False)

    # The first calls are those of the trial.
    assert seen[-10:] == [model is network] * 10


def test_training_agrees_with_a_loop_in_the_usual_format() -> None:
    task = task_of(lambda: network(norm=nn.BatchNorm2d(4)))
    expected = task.model()
    torch.manual_seed(1)
    initial = run(task, Partition(task.model()), FedAvg(shared_lr=0.0, batch_size=8), rounds=1).model("a")
    expected.load_state_dict(initial.state_dict())

    result = run(
        task, Partition(task.model()), FedAvg(shared_lr=0.1, batch_size=8), rounds=1, devices_per_round=1
    )

    cohort = next(line for line in result.rounds if line["work"] == "update")["asked"]
    (device,) = cohort
    expected.train()
    loss_of(expected, task.devices[device]["train"]).backward()
    with torch.no_grad():
        for parameter in expected.parameters():
            assert parameter.grad is not None
            parameter.add_(parameter.grad, alpha=-0.1)
    for name, parameter in expected.named_parameters():
        assert torch.allclose(result.shared[name], parameter, atol=1e-6), name


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


@pytest.mark.parametrize("executor", [{"workers": 2}, {"workers": 3}])
def test_worker_processes_give_the_same_bits(executor: dict[str, Any]) -> None:
    task = task_of(network)
    partition = Partition(task.model(), personal="5.*")
    method = FedAlt(shared_lr=0.1, batch_size=4)

    serial = run(task, partition, method, rounds=2)
    others = run(task, partition, method, rounds=2, **executor)

    assert same_bits(serial.shared, others.shared)
    assert same_bits(serial.personal("a"), others.personal("a"))
