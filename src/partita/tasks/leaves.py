"""The values inside the arguments and the output of a model: tensors, numbers, and containers of them."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""An integer type for each size of a floating-point one."""


class NotPlain(Exception):
    """A value is neither a dense tensor nor a number, a string or a container of such values."""


def leaves_of(value: Any) -> Iterator[Any]:
    """Yield the tensors and other values inside a value, each container first with its type and its keys.

    Raises:
        NotPlain: there is another value.
    """
    if isinstance(value, Tensor):
        if type(value) not in (Tensor, torch.nn.Parameter) or not _is_dense(value):
            raise NotPlain
        yield value
    elif value is None or isinstance(value, bool | int | float | str):
        yield value
    else:
        keys, items = _inside(value)
        yield type(value), keys
        for item in items:
            yield from leaves_of(item)


def detached(value: Any) -> Any:
    """Return a value with copies of its containers around the same tensors, detached."""
    if isinstance(value, Tensor):
        return value.detach()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    keys, items = _inside(value)
    return _rebuilt(value, keys, list(map(detached, items)))


def versions_of(leaves: Iterable[Any]) -> list[int]:
    """Return the versions of the tensors among the leaves: one grows where its tensor is changed in place."""
    return [leaf._version for leaf in leaves if isinstance(leaf, Tensor)]  # noqa: SLF001


def have_same_bits(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether leaves are the same, tensors bit for bit and in the same layout."""
    return len(some) == len(others) and all(map(_is_same, some, others))


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if not isinstance(one, Tensor):
        return one == other
    if (one.dtype, one.device, one.shape, one.stride()) != (
        other.dtype,
        other.device,
        other.shape,
        other.stride(),
    ):
        return False
    one, other = one.detach(), other.detach()
    if one.is_floating_point():
        integer = _INTEGERS[one.element_size()]
        one, other = one.view(integer), other.view(integer)
    return torch.equal(one, other)


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_inference() and not tensor.is_complex()


def _inside(value: Any) -> tuple[tuple[Any, ...], Iterable[Any]]:
    if isinstance(value, dict):
        return tuple(value), value.values()
    if isinstance(value, list | tuple):
        return (len(value),), value
    if is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in fields(value))
        return names, [getattr(value, name) for name in names]
    raise NotPlain


def _rebuilt(value: Any, keys: tuple[Any, ...], items: list[Any]) -> Any:
    if isinstance(value, tuple):
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    twin = copy.copy(value)
    if isinstance(value, list):
        twin[:] = items
    elif isinstance(value, dict):
        twin.update(zip(keys, items, strict=True))
    else:
        for name, item in zip(keys, items, strict=True):
            object.__setattr__(twin, name, item)
    return twin
