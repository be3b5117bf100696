"""Tensors that are computed when their values are needed.

A `Lazy` tensor stands for a value in the computation of one loss. Operations on it are made or put off by the
call that it belongs to.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from partita.reuse.rowwise import FACTS, tensors_in

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""
Autocast = tuple[bool, torch.dtype]


class Deviated(BaseException):
    """The loss does something that lazy tensors do not support; the visit is carried out without them.

    Not an `Exception`: the user's code must not catch it.
    """


class NotPutOff(Exception):
    """A call has to be made at once."""


@dataclass(eq=False)
class Node:
    """A value, and until it is computed, how to compute it."""

    name: str
    """Says how the value is computed; values of the same name at a position are the same."""
    is_constant: bool
    """Whether it is valid in later visits too."""
    compute: Callable[..., Any] | None = None
    args: Arguments = ((), {})
    """The arguments of `compute`, with slots for tensors."""
    parents: Sequence["Node"] = ()
    autocast: Autocast | None = None
    is_given: bool = False
    """Whether it is not computed but enters from outside."""
    is_by_row: bool = True
    """Whether it has one row for each example."""
    is_kept: bool = False
    """Whether its rows are kept already."""
    value: Any = None
    version: int = 0

    def set(self, value: Any) -> None:
        """Set the value and release the inputs that it was computed from, in place."""
        self.value, self.compute, self.args, self.parents = value, None, ((), {}), ()
        self.version = value._version if isinstance(value, Tensor) else 0  # noqa: SLF001

    def checked(self) -> Any:
        """Return the value, unless someone has changed it in place."""
        if isinstance(self.value, Tensor) and self.value._version != self.version:  # noqa: SLF001
            raise Deviated("a tensor is changed in place after it was used")
        return self.value


class Owner(Protocol):
    """The computation of a loss that a lazy tensor belongs to."""

    def operation(self, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Put an operation off, or make it with values."""
        ...

    def real(self, handle: "Lazy") -> Tensor:
        """Return the values of a lazy tensor."""
        ...


class Lazy(Tensor):
    """A tensor without values, for one call of the loss."""

    node: Node
    call: Owner
    has_views: bool
    """Whether a view of it was taken, or it is one."""

    @staticmethod
    def __new__(
        cls: type["Lazy"],
        node: Node,
        call: Owner,
        shape: Sequence[int],
        like: tuple[torch.dtype, torch.device],
    ) -> "Lazy":
        """Return a tensor of a shape."""
        made = Tensor._make_wrapper_subclass(cls, shape, dtype=like[0], device=like[1])  # noqa: SLF001
        made.node, made.call, made.has_views = node, call, False
        return made

    def __init__(self, *args: Any) -> None:
        """Do nothing: `__new__` has done it."""

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return repr(self.call.real(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.call.real(self).clone()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Put an operation off, or make it with values."""
        kwargs = kwargs or {}
        if func in FACTS:
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
                return func(*args, **kwargs)
        call = next(tensor.call for tensor in tensors_in((args, kwargs)) if isinstance(tensor, Lazy))
        return call.operation(func, args, dict(kwargs))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Make an operation that torch calls by itself, with values."""
        return func(*realized(args), **realized(kwargs or {}))


def realized(value: Any) -> Any:
    """Return nested tuples, lists and dicts with values in place of lazy tensors."""
    if isinstance(value, Lazy):
        return value.call.real(value)
    if type(value) in (tuple, list):
        return type(value)(map(realized, value))
    if isinstance(value, dict):
        return {key: realized(each) for key, each in value.items()}
    return value
