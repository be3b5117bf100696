"""How a table is read: which columns say what, who is on which side, which devices are taken."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How a table is read: which columns say what, who is on which side, which devices are taken."""

    device: str = "device"
    """The column that says whose a row is."""
    split: str = ""
    """The column that says `train`, `validation` or `test`; left out: `split` where the table has it, else
    `hash`. With `hash` the rows themselves tell their sides, with `time` a device's newest rows are test."""
    id: str = ""
    """The column that names a row, for `hash`; left out: `id` where there is, else its content names it."""
    group: str = ""
    """The column whose equal values stay on one side, such as a patient; left out: `group` where there is."""
    time: str = "time"
    """The column by which rows are new or old, for `time`."""
    test: float = 0.2
    """With `hash` and `time`, the share of rows that are held out for testing."""
    validation: float = 0.0
    """The share of training rows that are held out for tuning."""
    least_train: int = 0
    """The least training examples of a device that is taken; 0: a device without any is an error."""
    least_test: int = 0
    """The least test examples of a device that is taken; 0: a device without any is an error."""
    most: int = 0
    """The most training examples of a device, its first ones; 0: all."""
    devices: int = 0
    """How many devices are taken, a fixed sample; 0: all."""
    sort: bool = False
    """Sort a table whose rows are not grouped by device, once, to a copy in the user's cache folder."""
    skip_bad: bool = False
    """Leave out rows that cannot be used, and count them."""

    def __post_init__(self) -> None:
        for name in ("test", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 0 and below 1, got {getattr(self, name)!r}.")
        for name in ("least_train", "least_test", "most", "devices"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` must be 0 or above, got {getattr(self, name)!r}.")


_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def options_of(given: Mapping[str, Any]) -> TableOptions:
    """Return a table's options from the keys of a config that a task has no use for itself."""
    kinds = get_type_hints(TableOptions)
    for name, value in given.items():
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else f" Known: {', '.join(kinds)}."
            raise ValueError(f"There is no key `{name}`.{hint}")
        kind = bool if isinstance(value, bool) else type(value)
        if kind is not kinds[name] and not (kinds[name] is float and kind is int):
            raise ValueError(f"`{name}` must be {_WORDS[kinds[name]]}, got {value!r}.")
    return TableOptions(**given)
