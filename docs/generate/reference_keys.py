"""Config keys and commands as Markdown, from docstrings and `--help`."""

import contextlib
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from partita.cli import main
from partita.config.importing import SOURCES, TABLES
from partita.config.loading import load
from partita.config.reference import Key, arguments_of, default_text, first_line, function_keys, keys_of
from partita.config.schema import Config

POSITIONAL = ("source", "name", "path", "out", "progress")
"""Arguments of importers that are not `key=value` options."""


def config_keys() -> str:
    """Return all config keys, by section."""
    config = Config()
    texts = ["## At the top", _table(keys_of(config))]
    for entry in fields(config):
        section = getattr(config, entry.name)
        if is_dataclass(section):
            texts += [f"## `[{entry.name}]`", first_line(type(section)), _table(keys_of(section))]
    return "\n\n".join(texts)


def task_keys() -> str:
    """Return the further keys of `[task]`: by kind, for all tables and for all tasks."""
    return "\n\n".join(_entry(*entry) for entry in function_keys("task"))


def model_keys() -> str:
    """Return the further keys of `[model]`, by name."""
    return "\n\n".join(_entry(*entry) for entry in function_keys("model"))


def import_keys() -> str:
    """Return the keys of `partita import`, by kind."""
    texts: list[str] = []
    for kind in SOURCES | TABLES:
        function = load("kind", kind, SOURCES | TABLES)
        keys = [key for key in arguments_of(function) if key[0] not in POSITIONAL]
        texts.append(_entry(f"partita import {kind}", first_line(function), keys))
    return "\n\n".join(texts)


def commands() -> str:
    """Return the help text of every command."""
    whole = _help()
    names = re.findall(r"^ {4}(\w+) ", whole, re.MULTILINE)
    texts = [f"## `partita {name}`\n\n```text\n{_help(name)}```" for name in names]
    return "\n\n".join([f"```text\n{whole}```", *texts])


WRITERS: Mapping[str, Callable[[], str]] = {
    write.__name__: write for write in (config_keys, task_keys, model_keys, import_keys, commands)
}


def _help(*command: str) -> str:
    output = io.StringIO()
    os.environ["COLUMNS"] = "100"
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return output.getvalue()


def _entry(title: str, about: str, keys: Iterable[Key]) -> str:
    is_code = "=" in title or title.startswith("partita")
    heading = f"`{title}`" if is_code else title[0].upper() + title[1:]
    return "\n\n".join(filter(None, [f"### {heading}", about, _table(keys)]))


def _table(keys: Iterable[Key]) -> str:
    lines = [f"| `{name}` | {_default(value)} | {_in_cell(meaning)} |" for name, value, meaning in keys]
    return "\n".join(["| key | default | meaning |", "| --- | --- | --- |", *lines]) if lines else ""


def _default(value: Any) -> str:
    text = default_text(value)
    return text if text in ("not set", "required") else f"`{text}`"


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")
