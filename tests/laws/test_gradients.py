"""No gradient is computed that is thrown away: in every step of every method, for exactly what moves."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita import pipeline
from partita.methods import descent, registry
from small import built, task_of

REGULARIZED = {"personalize": {"proximal": 0.1}, "partition": {"l2": 0.1}}


def leaves_of(loss: Tensor) -> Iterator[Tensor]:
    """Yield the tensors for which `loss.backward()` computes a gradient."""
    seen, left = set(), [loss.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        left += [inner for inner, _ in node.next_functions]


@pytest.fixture
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Check every step of every visit, and return how many gradients each one has computed."""
    counts: list[int] = []
    moves_itself = int(request.node.callspec.params["method"] == "apfl")  # Its alpha is no part of the model.
    step = descent._step

    def checked(optimizer: Any, moving: list[Tensor], loss: Tensor, *others: Any) -> None:
        before = [tensor.detach().clone() for tensor in moving]
        computed = {id(leaf) for leaf in leaves_of(loss)}

        step(optimizer, moving, loss, *others)

        used = {id(tensor) for tensor in moving if tensor.grad is not None}
        assert used <= computed
        assert len(computed - used) <= moves_itself
        pairs = zip(moving, before, strict=True)
        moved = {id(tensor) for tensor, old in pairs if not torch.equal(tensor, old)}
        assert moved <= computed
        counts.append(len(computed))

    monkeypatch.setattr(descent, "_step", checked)
    return counts


@pytest.mark.parametrize("method", registry.names())
def test_gradients_are_computed_for_exactly_what_moves(method: str, steps: list[int]) -> None:
    made = built(method, task_of(method), **REGULARIZED)

    pipeline(made.task, made.personalization, made.plan)

    assert steps
    assert all(steps)


@pytest.mark.parametrize("method", ["fedalt", "fedsim", "fedavg"])
def test_a_frozen_layer_has_no_gradient(method: str, steps: list[int]) -> None:
    made = built(method, "small:normed_task", partition={"frozen": ["body.0.*"]})

    pipeline(made.task, made.personalization, made.plan)

    # Of ten parameters, two are frozen: pretraining moves at most the other eight.
    assert max(steps) == 8


def test_parameters_of_other_parts_have_no_gradient_after_a_phase() -> None:
    made = built("fedalt", "small:normed_task")
    seen: list[set[str]] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        seen.append({name for name, parameter in model.named_parameters() if parameter.requires_grad})
        return made.task.loss(model, batch)

    task = made.task.with_devices(made.task.devices)
    task.loss = loss
    pipeline(task, made.personalization, made.plan)

    parts = [frozenset(names) for names in seen]
    everything = {name for names in parts for name in names}
    kinds = {"head" if all(n.startswith("head.") for n in names) else "body" for names in parts if names}
    assert kinds == {"head", "body"}
    assert frozenset(everything) in parts  # Pretraining moves all at once.
    assert frozenset() in parts  # Evaluation moves nothing.
