"""What stands for files of a config that are not there, where only shapes count."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from partita.config.schema import Config
from partita.config.tasks import sought_files
from partita.data.options import TableOptions
from partita.data.placeholder import COLUMNS, write_placeholder

_LEARNT = {"vocabulary", "tokenizer", "tokens"}
"""Keys of what is learned of the data, or was."""
_CONTENT = {"image", "label", "audio", "text"}
"""Keys that name columns of content: a made-up table has the usual ones."""


def with_stand_ins(config: Config, beside: Path, folder: Path) -> tuple[Config, list[str]]:
    """Return the config with what is there in place of what is not, and a sentence for each such thing.

    Args:
        config: any config.
        beside: where its files are looked for.
        folder: where a made-up table can be written.
    """
    notes: list[str] = []
    start = config.model.start
    if start and not (beside / start).exists():
        notes.append(f"`{start}` is not here: weights are those before training.")
        config = replace(config, model=replace(config.model, start="", start_names={}))
    if config.task.kind not in COLUMNS:
        return config, notes
    sought = sought_files(config, beside)
    missing = {key: name for key, (name, places) in sought.items() if not any(p.exists() for p in places)}
    options: dict[str, Any] = dict(config.task.options)
    if "data" in missing:
        notes.append(f"`{missing['data']}` is not here: a made-up example stands for it.")
        options = _made_up(config.task.kind, options, folder / "made_up.parquet")
    else:
        notes += [f"`{options.pop(key)}` is not here: the data's own stands for it." for key in missing]
    return replace(config, task=replace(config.task, options=options)), notes


def _made_up(kind: str, options: dict[str, Any], path: Path) -> dict[str, Any]:
    """Write a made-up table and return the task's options for it."""
    devices, size, crop_from, words = (
        _count(options.get(key)) for key in ("devices", "size", "crop_from", "vocabulary_size")
    )
    write_placeholder(
        path, kind, devices=devices or 1, size=max(size or 28, crop_from), words=words or 10_000
    )
    dropped = ({entry.name for entry in fields(TableOptions)} - {"devices"}) | _LEARNT | _CONTENT
    return {**{name: value for name, value in options.items() if name not in dropped}, "data": str(path)}


def _count(value: Any) -> int:
    """Return a number above 0; 0 for anything else, which the task itself will refuse."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
