"""Moving batches and predictions to an accelerator and back."""

import copy
from collections.abc import Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

CPU = torch.device("cpu")


@runtime_checkable
class Movable(Protocol):
    """An object that has a method `to`, such as a packed sequence."""

    def to(self, device: torch.device) -> Any:
        """Return this on a device."""
        ...


def moved(value: Any, accelerator: torch.device) -> Any:
    """Return a value with every tensor in it on an accelerator; everything else stays as it is.

    Tensors are found in tuples, lists, mappings and dataclasses, nested in any way. Any other object is moved
    by its method `to`, if it has one.

    >>> moved({"inputs": [torch.ones(2)], "text": "two"}, torch.device("meta"))["inputs"][0].device
    device(type='meta')
    """
    if isinstance(value, Tensor):
        return value.to(accelerator)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Movable):
        return value.to(accelerator)
    if isinstance(value, list):
        return [moved(item, accelerator) for item in value]
    if isinstance(value, tuple):
        items = [moved(item, accelerator) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, Mapping):
        items = {key: moved(item, accelerator) for key, item in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return items
        copied = copy.copy(value)
        copied.update(items)
        return copied
    if is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        for field in fields(value):
            # A frozen dataclass refuses other ways, and `replace` would check its values again.
            object.__setattr__(copied, field.name, moved(getattr(value, field.name), accelerator))
        return copied
    return value
