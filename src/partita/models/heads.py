"""The head of a model, the linear layer that computes its outputs, and a second one of each device's own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from partita.models.adapters import patterns
from partita.partition import Partition, Personalization, Regularization
from partita.partition.tensors import tensors_of


class SecondHead(nn.Module):
    """A linear layer beside the head: the scores of the head and its own are added.

    It begins at 0, so that a model with a new second head predicts as without it.
    """

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        has_bias = head.bias is not None
        self.layer = nn.Linear(head.in_features, head.out_features, bias=has_bias).to(head.weight)
        nn.init.zeros_(self.layer.weight)
        if has_bias:
            nn.init.zeros_(self.layer.bias)
        self.instead: Tensor | None = None
        """Scores that are added instead of the layer's own; see `without_second_head`."""

    def forward(self, features: Tensor, scores: Tensor) -> Tensor:
        """Return the scores of both heads, from the features and the scores of the first."""
        return scores + (self.layer(features) if self.instead is None else self.instead)


def head_name(model: nn.Module, parts: Mapping[str, Any]) -> str:
    """Return the name of a model's head: the last linear layer of its part `head`, or else of the model.

    Raises:
        ValueError: there is none.
    """
    wanted = patterns(parts.get("head", "*"))
    found = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and any(fnmatchcase(f"{name}.weight", pattern) for pattern in wanted)
    ]
    if not found:
        raise ValueError(f"{type(model).__name__} has no head: no linear layer matches {wanted}.")
    return found[-1]


def second_head(
    model: nn.Module,
    parts: Mapping[str, Any],
    *,
    regularization: Regularization | None = None,
    **others: Any,
) -> Personalization:
    """Give each device a second head of its own, and share the rest of the model.

    Args:
        model: the model without a second head.
        parts: the parts that the model names, of which `head` has the first head.
        regularization: dropout and L2 penalty on the second head.
        others: further arguments of `Partition`, such as `frozen`.
    """
    name, before = head_name(model, parts), frozenset(tensors_of(model))
    prepare = partial(insert_second_head, name=name)
    partition = Partition(model, personal=lambda tensor, _: tensor not in before, prepare=prepare, **others)
    return Personalization(partition, regularization=regularization or Regularization())


def insert_second_head(model: nn.Module, *, name: str) -> nn.Module:
    """Add a second head to the linear layer `name`, in place; existing names stay the same."""
    head = model.get_submodule(name)
    if not isinstance(head, nn.Linear):
        raise TypeError(f"A head must be a Linear, got `{name}`, a {type(head).__name__}.")
    head.second = SecondHead(head)
    head.register_forward_hook(_add_second)
    return model


@torch.no_grad()
def merge_second_head(model: nn.Module) -> None:
    """Replace a head and its second one, in place, by one linear layer with the sum of their scores."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, SecondHead)}
    for name, second in found.items():
        head = name.removesuffix(".second")
        owner, _, attribute = head.rpartition(".")
        for own, parameter in second.layer.named_parameters():
            parameter.add_(model.get_parameter(f"{head}.{own}"))
        setattr(model.get_submodule(owner), attribute, second.layer)


@contextmanager
def without_second_head(model: nn.Module, instead: Tensor) -> Iterator[None]:
    """Let a model predict without its second head in this block, with other scores added to the first's.

    Raises:
        ValueError: the model has no second head.
    """
    found = next((module for module in model.modules() if isinstance(module, SecondHead)), None)
    if found is None:
        raise ValueError(f"{type(model).__name__} has no second head: use the partition `second_head`.")
    found.instead = instead
    try:
        yield
    finally:
        found.instead = None


@contextmanager
def head_inputs(model: nn.Module, name: str) -> Iterator[list[Tensor]]:
    """Yield a list that has the inputs of a model's head after each call of the model in this block."""
    found: list[Tensor] = []
    handle = model.get_submodule(name).register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    try:
        yield found
    finally:
        handle.remove()


def count_classes(targets: Tensor, classes: int) -> Tensor:
    """Return how many targets there are of each class; others, such as padding, are left out.

    >>> count_classes(torch.tensor([0, 2, 2, -100]), 3)
    tensor([1, 0, 2])
    """
    known = targets[(targets >= 0) & (targets < classes)]
    return torch.bincount(known, minlength=classes)


def _add_second(head: nn.Module, inputs: tuple[Tensor, ...], scores: Tensor) -> Tensor:
    return head.get_submodule("second")(inputs[0], scores)
