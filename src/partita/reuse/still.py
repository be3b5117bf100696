"""Modules without trained tensors: a check that they are unchanged, and a replacement of their `forward`."""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import nn

from partita.reuse.call import Call
from partita.reuse.lazy import Deviated, NotPutOff, realized
from partita.reuse.rowwise import PLAIN

_INTERNAL = vars(nn.Module()).keys() - {"training"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class State:
    """The tensors and attributes of a module and those inside it, at one moment."""

    def __init__(self, module: nn.Module) -> None:
        self._tensors = [
            (owner, name, tensor, tensor._version)  # noqa: SLF001
            for each in module.modules()
            for owner in (each._parameters, each._buffers)  # noqa: SLF001
            for name, tensor in owner.items()
            if tensor is not None
        ]
        # `training` is among the attributes; torch's own are not.
        self._attributes = [
            (vars(each), name, value)
            for each in module.modules()
            for name, value in vars(each).items()
            if name not in _INTERNAL and name != "forward"
        ]
        self._sizes = [(vars(each), _size(each)) for each in module.modules()]

    def holds(self) -> bool:
        """Return whether all are the same tensors and objects, and no tensor was changed in place."""
        for owner, name, tensor, version in self._tensors:
            if owner.get(name) is not tensor or tensor._version != version:  # noqa: SLF001
                return False
        for own, name, value in self._attributes:
            if own.get(name) is not value:
                return False
        return all(len(own) - ("forward" in own) == size for own, size in self._sizes)


def _size(module: nn.Module) -> int:
    """Return how many attributes a module has."""
    return len(vars(module)) - ("forward" in vars(module))


def _settings_of(module: nn.Module) -> str:
    """Return the numbers and texts among the attributes of a module and those inside it."""
    return repr(
        [
            (name, value)
            for each in module.modules()
            for name, value in vars(each).items()
            if type(value) in PLAIN and name not in _INTERNAL
        ]
    )


def _sums_of(module: nn.Module) -> list[float]:
    """Return the sum of each tensor of a module and those inside it."""
    tensors = [*module.parameters(), *module.buffers()]
    sums = [tensor.detach().sum().double() for tensor in tensors if tensor.is_floating_point()]
    return torch.stack(sums).tolist() if sums else []


def has_hooks(module: nn.Module) -> bool:
    """Return whether a module or one inside it has hooks."""
    return any(getattr(each, hooks) for each in module.modules() for hooks in _HOOKS)


def candidates(
    model: nn.Module, frozen: Set[int], refused: set[str]
) -> Iterator[tuple[str, nn.Module, bool]]:
    """Yield the largest modules in which nothing moves, and inside them the largest that are all frozen.

    Args:
        model: the model, its parameters set to move or not.
        frozen: the `id` of every frozen tensor.
        refused: names of modules that are not taken as a whole.

    Yields:
        Name, module, and whether it is all frozen.
    """
    seen: set[nn.Module] = set()

    def visit(name: str, module: nn.Module, *, in_still: bool, in_frozen: bool) -> Iterator[Any]:
        if module in seen or in_frozen:
            return
        seen.add(module)
        tensors = [*module.parameters(), *module.buffers()]
        still = not any(tensor.requires_grad for tensor in tensors)
        is_frozen = still and all(id(tensor) in frozen for tensor in tensors)
        taken = still and name not in refused and is_replaceable(module)
        if taken and (not in_still or (is_frozen and tensors)):
            yield name, module, is_frozen
        for child, own in module.named_children():
            path = f"{name}.{child}" if name else child
            yield from visit(path, own, in_still=in_still or taken, in_frozen=taken and is_frozen)

    for name, module in model.named_children():
        yield from visit(name, module, in_still=False, in_frozen=False)


def is_replaceable(module: nn.Module) -> bool:
    """Return whether a module has a `forward` that can be replaced, and no hooks."""
    is_plain = "forward" not in vars(module) and type(module).forward is not nn.Module.forward
    return is_plain and not has_hooks(module) and hasattr(type(module), "forward")


@dataclass
class Scope:
    """The call of the loss that is being computed, if any."""

    call: Call | None = None


class Forward:
    """Takes the place of a module's `forward`: puts the module off while a loss is computed.

    Args:
        module: the module.
        name: its name.
        scope: the calls of the loss in which it is put off.
        is_constant: whether it is frozen.
    """

    def __init__(self, module: nn.Module, name: str, scope: Scope, *, is_constant: bool) -> None:
        modes = "".join("01"[each.training] for each in module.modules())
        self.module = module
        self.label = " ".join([name, modes, repr(module), _settings_of(module)])
        self.scope = scope
        self.is_constant = is_constant
        self.state = State(module)
        self.sums = [] if is_constant else _sums_of(module)

    def check(self) -> None:
        """Raise where the module's tensors were changed by way of `data`, which leaves no mark on them.

        Raises:
            Deviated: they were, so that kept rows may have been the wrong ones.
        """
        if self.sums and self.state.holds() and _sums_of(self.module) != self.sums:
            raise Deviated("a tensor is changed by way of `data`")

    @property
    def plain(self) -> Callable[..., Any]:
        """The module's own `forward`."""
        return MethodType(type(self.module).forward, self.module)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Put the module off, or run it with values."""
        call = self.scope.call
        if call is not None and call.is_open and self.state.holds():
            try:
                return call.module(self.label, self.plain, (args, options), is_constant=self.is_constant)
            except NotPutOff:
                pass
        return self.plain(*realized(args), **realized(options))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return the plain `forward` of the copied module."""
        copied = memo[id(self.module)]
        return MethodType(type(copied).forward, copied)
