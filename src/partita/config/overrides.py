"""Overrides on the command line, `section.key=value`: lists by commas, and files from the current folder."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partita.config.changes import Values, parse_overrides, value_at, with_values
from partita.data.digests import is_there

TABLE, START, DERIVED = "task.data", "model.start", "task.derived"
"""The keys of the table, of initial weights, and of derived values."""
TEMPLATES = ("task.vocabulary", "task.tokenizer")
"""The keys of files from which a task takes derived values: a run does not need them again."""
KEYS = (TABLE, *TEMPLATES, DERIVED, START)
"""The keys of all files that a config can name."""
LISTS = ("task.metrics", "task.columns", "report.watchers")
"""The keys of lists; those of a comparison are spelled out with their short names."""


def with_overrides(values: Values, overrides: Sequence[str]) -> dict[str, Any]:
    """Return a config's values with `section.key=value` on top."""
    changes = parse_overrides(overrides)
    kind = str(value_at(with_values(values, changes), "task.kind"))
    for key, value in changes.items():
        # The arguments of the user's own function are passed to it as they are.
        if isinstance(value, str) and not (":" in kind and key.startswith("task.")):
            changes[key] = (
                [part for part in value.split(",") if part] if key in LISTS else located(key, value)
            )
    return with_values(values, changes)


def located(key: str, value: Any) -> Any:
    """Return the value of a key; of a file that exists in the current folder, its absolute path."""
    if key in KEYS and isinstance(value, str) and value and is_there(Path(value)):
        return str(Path(value).resolve())
    return value


def relative_to(folder: Path, files: Mapping[str, Path]) -> dict[str, str]:
    """Return files by key, as paths from a folder."""
    return {key: os.path.relpath(path.resolve(), folder.resolve()) for key, path in files.items()}
