"""One forward pass for loss and predictions: fewer calls, and the numbers of two passes."""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from partita import Task
from partita.data.examples import in_order
from partita.tasks.measure import measure

ROWS = 600  # Three batches of at most 256.
INPUTS = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(3, (ROWS,), generator=torch.Generator().manual_seed(2))


class Net(nn.Module):
    """A model that counts its passes, outside of everything that a state has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)
        self.passes = [0]

    def forward(self, inputs: Tensor) -> Any:
        self.passes[0] += 1
        return self.layer(inputs)


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def predict(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    return model(batch[0]), batch[1]


def task_of(loss: Any = cross_entropy, predict: Any = predict) -> Task:
    return Task(
        model=Net,
        loss=loss,
        predict=predict,
        metrics={"mean": lambda predictions, targets: predictions.double().mean().item()},
        devices={"a": {"train": (INPUTS, TARGETS)}},
    )


def two_passes(task: Task, model: nn.Module) -> dict[str, float]:
    """Return loss and metric, each batch first by the loss and then by `predict`, without any memory."""
    model.eval().requires_grad_(False)
    losses, predictions = [], []
    for batch, size in in_order(TensorRows(), 256):
        losses.append(task.loss(model, batch).item() * size)
        with torch.no_grad():
            predictions.append(task.predict(model, batch)[0])
    return {"loss": sum(losses) / ROWS, "mean": torch.cat(predictions).double().mean().item()}


class TensorRows:
    def __len__(self) -> int:
        return ROWS

    def batch_at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return INPUTS[positions], TARGETS[positions]


def check(task: Task, model: nn.Module, passes: int) -> None:
    """Check a model's numbers against two passes, and the number of its passes over three batches."""
    twin = copy.deepcopy(model)
    torch.manual_seed(7)
    expected = two_passes(task, twin)
    torch.manual_seed(7)

    measures = measure(task, model, TensorRows())

    assert {name: measures[name] for name in expected} == expected
    assert model.passes[0] == passes
    assert "forward" not in vars(model)


def test_a_batch_is_computed_once_after_the_first() -> None:
    # The first of three batches is computed twice, to see whether the model repeats itself.
    model = Net()
    check(task_of(), model, passes=4)

    model.passes[0] = 0
    measure(task_of(), model, TensorRows())

    assert model.passes[0] == 3


class Pair(NamedTuple):
    scores: Tensor
    name: str


@dataclass(frozen=True)
class Output:
    scores: Tensor
    hidden: list[Tensor]


CONTAINERS: dict[str, Callable[[Tensor], Any]] = {
    "tuple": lambda scores: (scores, None, 1.5),
    "named": lambda scores: Pair(scores, "x"),
    "list": lambda scores: [scores, [scores + 1]],
    "dict": lambda scores: {"scores": scores, "inner": {"more": scores}},
    "dataclass": lambda scores: Output(scores, [scores]),
}


def scores_of(output: Any) -> Tensor:
    if isinstance(output, dict):
        return output.pop("scores")
    return output.scores if hasattr(output, "scores") else output[0]


@pytest.mark.parametrize("kind", CONTAINERS)
def test_outputs_in_containers_are_remembered_even_where_the_loss_takes_them_out(kind: str) -> None:
    class Contained(Net):
        def forward(self, inputs: Tensor) -> Any:
            return CONTAINERS[kind](super().forward(inputs))

    task = task_of(
        lambda model, batch: nn.functional.cross_entropy(scores_of(model(batch[0])), batch[1]),
        lambda model, batch: (scores_of(model(batch[0])), batch[1]),
    )

    check(task, Contained(), passes=4)


def test_inputs_that_are_computed_again_are_known_by_their_bits() -> None:
    task = task_of(
        lambda model, batch: cross_entropy(model, (batch[0] / 2, batch[1])),
        lambda model, batch: predict(model, (batch[0] / 2, batch[1])),
    )

    check(task, Net(), passes=4)


def several_calls(model: nn.Module, batch: Any) -> Tensor:
    """A consistency loss: the call that `predict` repeats is neither the first nor the last."""
    shifted, plain, scaled = model(batch[0] + 1), model(batch[0]), model(batch[0] * 2)
    return nn.functional.cross_entropy(plain, batch[1]) + (shifted - scaled).square().mean()


def changes_the_output(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]).mul_(3), batch[1])


def changes_the_input(model: nn.Module, batch: Any) -> Tensor:
    loss = cross_entropy(model, batch)
    batch[0].add_(1)
    return loss


def changes_the_model(model: nn.Module, batch: Any) -> Tensor:
    loss = cross_entropy(model, batch)
    model.layer.weight.add_(0.01)
    return loss


def changes_data(model: nn.Module, batch: Any) -> Tensor:
    """Change the model where no version grows; seen on the first batch."""
    loss = cross_entropy(model, batch)
    model.layer.weight.data.add_(0.01)
    return loss


def replaces_a_tensor(model: nn.Module, batch: Any) -> Tensor:
    loss = cross_entropy(model, batch)
    weight = model.get_parameter("layer.weight")
    model.layer.weight = nn.Parameter(weight + 0.01, requires_grad=False)
    return loss


def calls_a_layer(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model.layer(batch[0]), batch[1])


def uses_a_copy(model: nn.Module, batch: Any) -> Tensor:
    """Take a step on a copy of the model, as meta-learning does."""
    twin = copy.deepcopy(model).requires_grad_(True)
    (gradient,) = torch.autograd.grad(cross_entropy(twin, batch), [twin.layer.weight])
    with torch.no_grad():
        twin.layer.weight.sub_(gradient)
    return cross_entropy(twin, batch)


def needs_gradients_of_inputs(model: nn.Module, batch: Any) -> Tensor:
    inputs = batch[0].clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(cross_entropy(model, (inputs, batch[1])), [inputs])
    return cross_entropy(model, (inputs + gradient.sign(), batch[1]))


def vectorized(model: nn.Module, batch: Any) -> Tensor:
    scores = torch.vmap(lambda row: model(row[None])[0])(batch[0])
    return nn.functional.cross_entropy(scores, batch[1])


@pytest.mark.parametrize(
    ("loss", "passes"),
    [
        (several_calls, 3 * 3 + 1),
        (changes_the_output, 6),
        (changes_the_input, 6),
        (changes_the_model, 6),
        (changes_data, 6),
        (replaces_a_tensor, 6),
        (calls_a_layer, 3),
        # A copy shares the list in which passes are counted only with itself.
        (uses_a_copy, 3),
        # The inputs themselves are predicted from, so those with a gradient are found by their bits.
        (needs_gradients_of_inputs, 3 * 2 + 1),
        (vectorized, 6),
    ],
)
def test_any_loss_gives_the_numbers_of_two_passes(loss: Any, passes: int) -> None:
    check(task_of(loss), Net(), passes)


def predicts_in_train_mode(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    model.layer.train()
    try:
        return predict(model, batch)
    finally:
        model.layer.eval()


def predicts_from_others(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    return model(-batch[0]), batch[1]


def predicts_and_changes(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    model(batch[0]).zero_()
    return model(batch[0]), batch[1]


@pytest.mark.parametrize(
    ("own", "passes"), [(predicts_in_train_mode, 6), (predicts_from_others, 6), (predicts_and_changes, 7)]
)
def test_any_predict_gives_the_numbers_of_two_passes(own: Any, passes: int) -> None:
    check(task_of(predict=own), Net(), passes)


class Noisy(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + torch.randn(1)


class Alternating(Net):
    """A model whose output depends on how often it was called."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * (1 + self.passes[0] % 2)


class Counting(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(inputs) * self.calls


class InPlace(Net):
    """A model that changes its input."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.mul_(2))


class GradMode(Net):
    """A model that computes something else where no gradient is recorded."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + (1 if torch.is_grad_enabled() else 0)


class Skipping(Net):
    """A model that draws a number of Python's, which changes its output only now and then."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * (2 if self.draws.random() < 0.3 else 1)

    draws: Any = random


@pytest.mark.parametrize("draws", [random, np.random])
def test_random_numbers_that_seldom_change_the_output_are_drawn_twice(draws: Any) -> None:
    model, twin = Skipping(), Skipping()
    model.draws = twin.draws = draws
    draws.seed(6)  # The first two numbers change nothing, later ones do.
    expected = two_passes(task_of(), twin)
    draws.seed(6)

    measures = measure(task_of(), model, TensorRows())

    assert {name: measures[name] for name in expected} == expected


@pytest.mark.parametrize("kind", [Noisy, Alternating, Counting, InPlace, GradMode])
def test_a_model_that_does_not_repeat_itself_is_computed_twice(kind: type[Net]) -> None:
    check(task_of(), kind(), passes=6)


def test_a_forward_of_the_instance_itself_is_left_alone() -> None:
    model = Net()
    own = model.forward
    model.forward = lambda inputs: own(inputs) + 1  # type: ignore[method-assign]

    measures = measure(task_of(), model, TensorRows())

    model.eval()
    with torch.no_grad():
        assert (
            measures["mean"]
            == torch.cat([model(b[0]) for b, _ in in_order(TensorRows(), 256)]).double().mean()
        )


def test_an_error_leaves_the_model_as_it_was() -> None:
    def broken(model: nn.Module, batch: Any) -> Tensor:
        model(batch[0])
        raise ZeroDivisionError

    model = Net()
    with pytest.raises(ZeroDivisionError):
        measure(task_of(broken), model, TensorRows())

    assert "forward" not in vars(model)
