"""Plans: the modules that a stage's visits put off, because nothing in them moves."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from partita.partition import Part
from partita.reuse.still import Forward, Scope, is_replaceable

Moving = frozenset[Part]
"""The parts that move."""
MOVING: tuple[Moving, ...] = (
    frozenset({"personal"}),
    frozenset({"shared"}),
    frozenset({"personal", "shared"}),
)


@dataclass(frozen=True)
class Still:
    """A module that is put off."""

    name: str
    is_frozen: bool


@dataclass(frozen=True)
class Plan:
    """The modules of a model that are put off while some parts move."""

    modules: Sequence[Still] = ()
    operations: int = 0
    """Floating-point operations of these modules for one example."""
    bytes_per_example: int = 0
    """The memory of what is kept."""
    begins: str = ""
    """The module from which on the model is computed in every step."""
    reason: str = ""
    """The reason why nothing is put off."""
    refused: set[str] = field(default_factory=set)
    """Calls that are not put off."""
    shapes: dict[str, Any] = field(default_factory=dict)
    """The shapes of values that were computed, by name; grows in place."""

    def forwards(self, model: nn.Module, scope: Scope, *, several: bool = True) -> dict[nn.Module, Forward]:
        """Return what takes the place of `forward` in modules that are put off.

        Args:
            model: the model.
            scope: the calls of the loss in which they are.
            several: whether there are several passes; otherwise only frozen modules are put off.
        """
        stills = [still for still in self.modules if still.is_frozen or several]
        modules = {still.name: model.get_submodule(still.name) for still in stills}
        if not several and not any(list(module.parameters()) for module in modules.values()):
            return {}
        return {
            modules[still.name]: Forward(modules[still.name], still.name, scope, is_constant=still.is_frozen)
            for still in stills
            if is_replaceable(modules[still.name])
        }


NOTHING = Plan()
"""Nothing is put off."""


@contextmanager
def replaced(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replace the `forward` of modules in this block."""
    for module, forward in forwards.items():
        vars(module)["forward"] = forward
    try:
        yield
    finally:
        for module in forwards:
            vars(module).pop("forward", None)
