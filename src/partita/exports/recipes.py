"""Recipes: how a model is built again where neither its run nor its data are.

A recipe names the function that builds the model by its import path, with its arguments as JSON values, and
the steps that a partition adds: adapters, tensors that are no longer tied, a function of one's own. It names
code and contains none. Code of Partita is called as it is; other code only where the caller allows it.
"""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from partita.errors import ConfigError, described
from partita.models.adapters import Adapters, insert_adapters
from partita.models.full import Full
from partita.partition import Personalization
from partita.partition.ties import untie
from partita.tasks.build import preserved_random_state

_ADAPTERS, _UNTIE, _OWN = "adapters", "untie", "function"
"""The keys of steps."""


class NotNamed(ConfigError):
    """A model that no import path and arguments name."""


@runtime_checkable
class Wraps(Protocol):
    """A function that builds a model around another one, which is enough to build it without weights."""

    @property
    def plain_builder(self) -> Callable[[], nn.Module]:
        """The other function."""
        ...


@dataclass(frozen=True)
class Call:
    """A function by its import path, with its arguments by name as JSON values."""

    path: str
    options: Mapping[str, Any]

    @property
    def is_ours(self) -> bool:
        """Whether it is code of Partita."""
        return self.path.partition(":")[0].partition(".")[0] == "partita"


@dataclass(frozen=True)
class Recipe:
    """The function that builds a model, and the steps after it."""

    call: Call
    steps: Sequence[Mapping[str, Any]] = ()

    def to_values(self) -> dict[str, Any]:
        """Return the recipe as JSON values."""
        steps = [dict(step) for step in self.steps]
        return {"function": self.call.path, "options": dict(self.call.options), "steps": steps}

    @property
    def user_code(self) -> str:
        """The import path of the first function that is not Partita's, empty if there is none."""
        calls = [self.call, *(_call_in(step) for step in self.steps if _OWN in step)]
        return next((call.path for call in calls if not call.is_ours), "")

    def build(self) -> nn.Module:
        """Return the model with initial weights; the random state stays as it was."""
        with preserved_random_state():
            model = _function(self.call)(**self.call.options)
            for step in self.steps:
                model = _apply(step, model)
        if not isinstance(model, nn.Module):
            raise TypeError(f"`{self.call.path}` must return a module, got {type(model).__name__}.")
        return model


def recipe_of(builder: Callable[[], nn.Module], own: Personalization | None) -> Recipe:
    """Return the recipe of a model.

    Args:
        builder: builds the plain model.
        own: how it is personalized; None for the plain model.

    Raises:
        NotNamed: import paths and JSON values do not say how it is built.
    """
    while isinstance(builder, Wraps):
        builder = builder.plain_builder
    steps = [] if own is None else list(_steps_of(own))
    return Recipe(_call_of("The model", builder), steps)


def recipe_from(values: Mapping[str, Any]) -> Recipe:
    """Return the recipe with the values of `to_values`.

    Raises:
        ConfigError: they are no recipe.
    """
    try:
        steps = [dict(step) for step in values["steps"]]
        if not all(step.keys() & {_ADAPTERS, _UNTIE, _OWN} for step in steps):
            raise TypeError("a step is unknown")
        return Recipe(_call_in(values), steps)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"The file does not say how its model is built: {described(error)}.") from None


def _steps_of(own: Personalization) -> list[Mapping[str, Any]]:
    prepare, untied = own.partition.preparation
    steps: list[Mapping[str, Any]] = []
    function, options = _unwrapped(prepare) if prepare else (None, {})
    if function is insert_adapters:
        after = options["where"].after
        after = [after] if isinstance(after, str) else list(after)
        steps.append({_ADAPTERS: {"after": after, "width": options.get("width", 0)}})
    elif prepare is not None and function is not Full:  # Of a `Full` model only the device's own leaves.
        call = _call_of("The function `prepare` of the partition", prepare)
        steps.append({_OWN: call.path, "options": dict(call.options)})
    return [*steps, *([{_UNTIE: dict(untied)}] if untied else [])]


def _apply(step: Mapping[str, Any], model: nn.Module) -> nn.Module:
    if _ADAPTERS in step:
        settings = step[_ADAPTERS]
        return insert_adapters(model, where=Adapters(after=settings["after"]), width=settings["width"])
    if _UNTIE in step:
        untie(model, step[_UNTIE])
        return model
    call = _call_in(step)
    return _function(call)(model, **call.options)


def _call_in(values: Mapping[str, Any]) -> Call:
    path, options = values[_OWN], values["options"]
    if not isinstance(path, str) or not isinstance(options, dict):
        raise TypeError(f"a function and its options are needed, got {path!r} and {options!r}")
    return Call(path, options)


def _unwrapped(function: Callable[..., Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return a function without arguments that are bound to it by name, and these."""
    options: dict[str, Any] = {}
    while isinstance(function, partial) and not function.args:
        options = {**function.keywords, **options}
        function = function.func
    return function, options


def _call_of(what: str, function: Callable[..., Any]) -> Call:
    """Return a function and its arguments by name.

    Raises:
        NotNamed: it has no import path, or an argument is no JSON value.
    """
    function, options = _unwrapped(function)
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    path = f"{module}:{name}"
    if module in (None, "__main__") or _found(path) is not function:
        shown = name or type(function).__name__
        raise NotNamed(
            f"{what} is built by `{shown}`, which no import path names, so no other program could build it "
            "again."
        )
    try:
        is_json = json.loads(json.dumps(options, allow_nan=False)) == options
    except (TypeError, ValueError):
        is_json = False
    if not is_json:
        raise NotNamed(f"{what} is built by `{path}` with arguments that are no JSON values: {options!r}.")
    return Call(path, options)


def _found(path: str) -> Any:
    """Return the object with an import path, None if there is none."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _function(call: Call) -> Callable[..., Any]:
    """Return the function of a call; of Partita, only the class of a model.

    Raises:
        ConfigError: there is none.
    """
    found = _found(call.path)
    is_model = isinstance(found, type) and issubclass(found, nn.Module)
    if not callable(found) or (call.is_ours and not is_model):
        raise ConfigError(
            f"The model is built by `{call.path}`, which does not import here: install the package that has "
            "it, or the version of Partita that wrote the file."
        )
    return found


def shapes_without_memory(recipe: Recipe) -> dict[str, torch.Size]:
    """Return the shapes of a model's tensors without the memory that these would take."""
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in recipe.build().state_dict().items()}
