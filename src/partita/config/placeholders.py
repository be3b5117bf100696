"""Placeholders for missing files of a config, where only shapes matter."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from partita.config.files import named_files
from partita.config.overrides import DERIVED, OF_MODEL, START, TABLE, TEMPLATES
from partita.config.schema import Config
from partita.data.digests import is_there
from partita.data.options import TableOptions
from partita.data.placeholder import COLUMNS, LABEL, write_placeholder

_LEARNED = {"vocabulary", "tokenizer", "tokens", "derived", "metrics"}
"""Keys of files and settings that belong to the real data."""
_CONTENT = {"image", "audio", "text"}
"""Keys that name columns of content: a placeholder table has the default ones."""


def with_placeholders(config: Config, beside: Path, folder: Path) -> tuple[Config, list[str]]:
    """Return the config with placeholders for missing files, and one message per missing file.

    Args:
        config: any config.
        beside: the folder of the config, where files that it names are found.
        folder: a folder for a placeholder table.
    """
    notes: list[str] = []
    files = named_files(config, beside)
    missing = {key: name for key, (name, places) in files.items() if not any(map(is_there, places))}
    if START in missing:
        notes.append(f"`{missing[START]}` is missing: the model has its initial weights.")
        config = replace(config, model=replace(config.model, start="", start_names={}))
    if config.task.kind not in COLUMNS:
        return config, notes
    options: dict[str, Any] = dict(config.task.options)
    if TABLE in missing:
        notes.append(f"`{missing[TABLE]}` is missing: a placeholder is used.")
        options = _write_placeholder(config.task.kind, options, folder / "placeholder.parquet")
        config = replace(config, evaluate=replace(config.evaluate, unseen=0.0))
    else:
        lacking = [key.removeprefix("task.") for key in (*TEMPLATES, DERIVED) if key in missing]
        notes += [f"`{options.pop(key)}` is missing: one made from the data is used." for key in lacking]
    return replace(config, task=replace(config.task, options=options)), notes


def _write_placeholder(kind: str, options: dict[str, Any], path: Path) -> dict[str, Any]:
    """Write a placeholder table and return the task's options for it."""
    devices, size, crop_from, words = (
        _count(options.get(key)) for key in ("devices", "size", "crop_from", "vocabulary_size")
    )
    write_placeholder(
        path, kind, devices=devices or 1, size=max(size or 28, crop_from), words=words or 10_000
    )
    dropped = ({entry.name for entry in fields(TableOptions)} - {"devices"}) | _LEARNED | _CONTENT
    kept = {name: value for name, value in options.items() if name not in dropped or value == OF_MODEL}
    label = {LABEL: LABEL} if kept.get(LABEL) else {}
    return {**kept, **label, "data": str(path)}


def _count(value: Any) -> int:
    """Return a number above 0, or 0 for anything else, which the task refuses itself."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
