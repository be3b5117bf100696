"""Overrides on the command line, `section.key=value`: lists by commas, and files from the current folder."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partita.config.changes import Values, parse_overrides, value_at, with_values
from partita.data.digests import is_there

TABLE, START, DERIVED = "task.data", "model.start", "task.derived"
"""The keys of the table, of initial weights, and of derived values."""
PRETRAINED, PATH = "hf", "model.path"
"""The name of a pretrained Hugging Face model, and the key of its folder, which may be on a hub instead."""
TOKENIZER, OF_MODEL = "task.tokenizer", "model"
"""The key of a tokenizer, and the value that stands for the model's own."""
TEMPLATES = ("task.vocabulary", TOKENIZER)
"""The keys of files from which a task takes derived values: a run does not need them again."""
KEYS = (TABLE, *TEMPLATES, DERIVED, START, PATH)
"""The keys of all files that a config can name."""
LISTS = ("task.metrics", "task.columns", "report.watchers")
"""The keys of lists; those of a comparison are spelled out with their short names."""


def with_overrides(values: Values, overrides: Sequence[str]) -> dict[str, Any]:
    """Return a config's values with `section.key=value` on top."""
    changes = parse_overrides(overrides)
    whole = with_values(values, changes)
    kind, model = (str(value_at(whole, key)) for key in ("task.kind", "model.name"))
    for key, value in changes.items():
        # The arguments of the user's own function are passed to it as they are.
        is_own = (":" in kind and key.startswith("task.")) or (key == PATH and model != PRETRAINED)
        if isinstance(value, str) and not is_own:
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
