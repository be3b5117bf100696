"""The functions that an update may declare besides its own call, each a static method of its class.

An update without them behaves as if they did not exist. Each is found by its name:

- `keeps(shared, personal)` and `sends(shared)`: tensors besides the model, see `methods.carried`.
- `begins(shared, personal, kept)`: the tensors of the model with which a device begins where no update runs:
  when its own model is evaluated, fine-tuned or exported. An update owns its start: it may need the
  received shared part and what the device has kept together, before it makes one model of them.
- `predicts(model, examples)`: the module that predicts for a device when its own model is evaluated.
- `weighs(shared, examples)`: the weight of a reply, a whole number of at least 1.
- `fills(sent)`: the values that count for coordinates of the shared part that a device's model lacks.

Keyword-only arguments of these functions are hyperparameters of the update, given by name.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol

from torch import Tensor, nn

from partita.data.examples import Batch, Examples
from partita.methods.descent import LocalUpdate
from partita.params import Params
from partita.tasks.task import PredictFn

LocalFn = Callable[..., LocalUpdate]
"""Returns an update from `personal` and `shared` steps, such as `LocalAlt`; with hyperparameters, a
`functools.partial` of one."""

LACKS = (
    "A device's model lacks coordinates of the shared part, and the method does not say what counts there: "
    "it must declare `fills`, or all devices must have the same shared part."
)
"""The error about models with smaller shared tensors."""
EXAMPLES = "examples"
"""An update with an argument of this name is given the device's own examples."""


@dataclass(frozen=True)
class OwnExamples:
    """The training examples of a device, for a method that needs more than batches in a random order."""

    examples: Examples
    """The examples, by position."""
    batch_size: int
    """Examples per training step."""
    predict: PredictFn
    """The task's function from a model and a batch to predictions and targets."""

    def __len__(self) -> int:
        return len(self.examples)

    def batch_at(self, positions: Tensor) -> Batch:
        """Return the examples at some positions as one batch."""
        return self.examples.batch_at(positions)


class Begins(Protocol):
    """A kind of update that declares how a device's own model begins where no update runs."""

    @staticmethod
    def begins(shared: Params, personal: Params, kept: Params) -> Params:
        """Return the tensors of the model that begin with other values, by name.

        Args:
            shared: the shared part as the server has sent it.
            personal: the personal part that the device has kept, or its start.
            kept: the tensors that the update declares in `keeps`.
        """
        ...


class Predicts(Protocol):
    """A kind of update that declares how a device's own model predicts."""

    @staticmethod
    def predicts(model: nn.Module, examples: OwnExamples) -> nn.Module:
        """Return a module that takes the place of the model in the task's `loss` and `predict`."""
        ...


class Weighs(Protocol):
    """A kind of update that declares the weight of a reply."""

    @staticmethod
    def weighs(shared: Params, examples: int) -> int:
        """Return the weight, from the trained shared part and the number of training examples."""
        ...


class Fills(Protocol):
    """A kind of update for devices whose models lack some coordinates of the shared part."""

    @staticmethod
    def fills(sent: Tensor) -> Tensor:
        """Return the values that count for a tensor where the device's model lacks them."""
        ...


SEAMS: Mapping[str, str] = {
    "begins": "how a device's own model begins",
    "predicts": "how it predicts",
    "weighs": "the weight of a reply",
    "fills": "values for coordinates that a device lacks",
}
"""The decision of each function, `keeps` and `sends` aside."""


def declared(local: LocalFn, name: str) -> Callable[..., Any] | None:
    """Return a function that a kind of update declares, with its hyperparameters; None where it does not."""
    function = getattr(kind_of(local), name, None)
    if function is None:
        return None
    wanted = _options_of(function)
    if not wanted:
        return function
    known = {**_arguments_of(kind_of(local)), **(local.keywords if isinstance(local, partial) else {})}
    return partial(function, **{option: known[option] for option in wanted if option in known})


def declared_seams(local: LocalFn) -> list[str]:
    """Return the names of the functions that a kind of update declares besides `keeps` and `sends`."""
    return [name for name in SEAMS if declared(local, name) is not None]


def has_own_model(local: LocalFn) -> bool:
    """Return whether a device's own model may be another than its parts, even without a personal part."""
    return declared(local, "begins") is not None or declared(local, "predicts") is not None


def kind_of(local: LocalFn) -> LocalFn:
    """Return the class or function of an update without its settings."""
    return local.func if isinstance(local, partial) else local


def takes_examples(local: LocalFn) -> bool:
    """Return whether an update is given the device's own examples."""
    return EXAMPLES in _arguments_of(kind_of(local))


@cache
def _options_of(function: Callable[..., Any]) -> tuple[str, ...]:
    arguments = inspect.signature(function).parameters.values()
    return tuple(argument.name for argument in arguments if argument.kind is argument.KEYWORD_ONLY)


@cache
def _arguments_of(kind: LocalFn) -> Mapping[str, Any]:
    """Return the arguments of an update with their defaults; none where it has no signature."""
    try:
        arguments = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):  # Some built-in functions.
        return {}
    return {argument.name: argument.default for argument in arguments}
