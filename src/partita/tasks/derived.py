"""Values that a task derives from the training rows of all seen devices, and the JSON file for them.

They are the vocabulary of texts, the tokenizer of transcripts, the number of classes, and the columns of a
table with their standardization. A model is of use only with the values that it was trained with. So a run
keeps them in its folder, and a config can name that file: another run, or a device that knows no other
device's rows, uses the same values.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.errors import ConfigError, raise_fault

Derived = Mapping[str, Any]
"""JSON values by name; `kind` is the kind of task."""


def read_derived(kind: str, file: str) -> Derived | None:
    """Return the values in a file that a run wrote; None where no file is named.

    Raises:
        ConfigError: the file cannot be read, or its values belong to another kind of task.
    """
    if not file:
        return None
    try:
        values = json.loads(Path(file).read_bytes())
    except (OSError, ValueError) as error:
        raise_fault(error, Path(file))
        raise ConfigError(f"Cannot read the derived values `{file}`: {error}.") from None
    found = values.get("kind") if isinstance(values, dict) else values
    if found != kind:
        raise ConfigError(f"`{file}` must have the derived values of a task of kind {kind!r}, got {found!r}.")
    return values


def check_agrees(name: str, given: Any, derived: Derived) -> None:
    """Raise a `ValueError` if an option is given and is not the derived value of this name."""
    if given and given != derived.get(name):
        raise ValueError(
            f"`{name}` must be {derived.get(name)!r}, as the file `derived` says, got {given!r}: leave out "
            "one of them."
        )


def derived_bytes(derived: Derived) -> bytes:
    """Return the content of a file of derived values."""
    return json.dumps(dict(derived), indent=1, ensure_ascii=False).encode()


def differing(derived: Derived, other: Derived) -> list[str]:
    """Return the names of values that differ and do not show in the shapes of a model, as `classes` does.

    >>> differing({"kind": "tabular", "mean": [0.5], "classes": 2}, {"kind": "tabular", "mean": [0.4]})
    ['mean']
    """
    names = dict.fromkeys([*derived, *other])
    return [name for name in names if name != "classes" and derived.get(name) != other.get(name)]
