"""Predicting rows of a table that nothing is learned from: no label is needed, and no split."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from partita.data.examples import Batch
from partita.data.rows import Rows

Answer = Mapping[str, Any]
"""The prediction for one row, by column."""


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """How a task predicts rows of a table."""

    columns: Sequence[str]
    """The columns that an input is made of."""
    examples: Callable[[Rows], Any]
    """Makes examples of rows, as for a split of a device; in the place of labels is anything."""
    predict: Callable[[nn.Module, Batch], Iterable[Answer]]
    """Returns the prediction for every example of a batch."""
    kinds: Mapping[str, type]
    """The columns of predictions, with their types."""
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    """JSON values that say how an input is made of a row; those that were derived from data aside."""


CLASS = {"prediction": int, "probability": float}
"""The columns of a predicted class."""
NAMED_CLASS = {"prediction": int, "class": str, "probability": float}
"""The columns of a predicted class that has a name."""
NUMBER = {"prediction": float}
"""The columns of a predicted number."""


def class_answers(scores: Tensor, names: Sequence[str] = ()) -> list[Answer]:
    """Return the most likely class of each row, with its name where classes have one, and its probability.

    >>> import torch
    >>> class_answers(torch.zeros(1, 4), ["ant", "bee", "cat", "dog"])
    [{'prediction': 0, 'class': 'ant', 'probability': 0.25}]
    """
    best = scores.double().softmax(dim=1).max(dim=1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        {"prediction": label, **({"class": names[label]} if names else {}), "probability": probability}
        for label, probability in pairs
    ]


def number_answers(outputs: Tensor) -> list[Answer]:
    """Return the predicted number of each row.

    >>> import torch
    >>> number_answers(torch.tensor([[0.5], [2.0]]))
    [{'prediction': 0.5}, {'prediction': 2.0}]
    """
    return [{"prediction": value} for value in outputs.flatten().tolist()]


def classes_of(names: Sequence[str]) -> Mapping[str, type]:
    """Return the columns of predicted classes with some names, or without any."""
    return NAMED_CLASS if names else CLASS
