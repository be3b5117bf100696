"""The keys of `[task]` that say how a table is read."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from partita.errors import did_you_mean

UNSEEN = "unseen"
"""The argument of a task's function that is no key of `[task]`: a config sets it in `[evaluate]`."""


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How a table is read: the roles of its columns, the splits, and the selection of devices."""

    device: str = "device"
    """The column of device ids."""
    split: str = ""
    """The column with `train`, `validation` or `test`. Default: `split` if the table has it, else `hash`.
    With `hash`, a hash of the row decides; with `time`, the newest rows of each device are test rows."""
    id: str = ""
    """The column of row ids, for `hash`. Default: `id` if the table has it, else all of the row's content."""
    group: str = ""
    """The column of groups, such as patients: rows of one group are in one split. Default: `group`, if the
    table has it."""
    time: str = "time"
    """The column of times, for `time`."""
    test: float = 0.2
    """The share of test rows, for `hash` and `time`."""
    validation: float = 0.0
    """The share of each device's training rows held out for validation: the nearest number of rows, but never
    the last training row. A device with validation rows of its own keeps these."""
    min_train_examples: int = 0
    """Devices with fewer training examples, before validation rows are held out, are left out. 0: a device
    without any is an error."""
    min_test_examples: int = 0
    """Devices with fewer test examples are left out. 0: a device without any is an error."""
    max_examples: int = 0
    """The maximum number of training examples per device: the first ones are used. 0: all."""
    devices: int = 0
    """The number of devices, a fixed sample of all. 0: all."""
    sort: bool = False
    """If rows are not grouped by device, sort the table once, into a copy in the user's cache folder."""
    skip_bad: bool = False
    """Skip and count rows that cannot be used, instead of stopping with an error."""

    def __post_init__(self) -> None:
        for name in ("test", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 0 and below 1, got {getattr(self, name)!r}.")
        for name in ("min_train_examples", "min_test_examples", "max_examples", "devices"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` must be 0 or above, got {getattr(self, name)!r}.")


_KINDS = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def options_of(values: Mapping[str, Any], task_keys: Sequence[str] = ()) -> TableOptions:
    """Return a table's options from those keys of `[task]` that are not the task's own.

    Args:
        values: the values by key.
        task_keys: the task's own keys, suggested along with the table's for a key that does not exist.

    Raises:
        ValueError: a key does not exist, or its value is of the wrong type.
    """
    kinds = get_type_hints(TableOptions)
    for name, value in values.items():
        if name not in kinds:
            raise unknown_key(name, [*task_keys, *kinds])
        kind = bool if isinstance(value, bool) else type(value)
        if kind is not kinds[name] and not (kinds[name] is float and kind is int):
            raise ValueError(f"`{name}` must be {_KINDS[kinds[name]]}, got {value!r}.")
    return TableOptions(**values)


def unknown_key(name: str, known: Sequence[str]) -> ValueError:
    """Return the error about a key that does not exist, with a similar one and the list of all.

    >>> unknown_key("sise", ["size", "label"])
    ValueError('There is no key `sise`. Did you mean `size`? The keys: size, label.')
    """
    return ValueError(f"There is no key `{name}`.{did_you_mean(name, known)} The keys: {', '.join(known)}.")


def keys_of(task: Callable[..., Any]) -> list[str]:
    """Return the names of a task function's own keys, without those of its table."""
    parameters = inspect.signature(task).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != UNSEEN]
