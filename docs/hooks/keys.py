"""MkDocs hook: insert config keys and commands into the reference, from docstrings and `--help`.

Each `<!-- generated: NAME -->` on a page is replaced by the text of one of the `WRITERS`.
"""

import contextlib
import inspect
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from partita.cli import main
from partita.config.importing import SOURCES, TABLES
from partita.config.loading import MODELS, TASKS, load
from partita.config.reference import field_docs
from partita.config.schema import Config
from partita.data.options import TableOptions
from partita.tasks import synthetic

POSITIONAL = ("source", "name", "path", "out", "progress")
"""Arguments of importers that are not `key=value` options."""

Row = tuple[str, Any, str]
"""A key, its default and its meaning."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page with the generated text inserted."""
    for name, write in WRITERS.items():
        marker = f"<!-- generated: {name} -->"
        if marker in markdown:
            markdown = markdown.replace(marker, write())
    return markdown


def config_keys() -> str:
    """Return all config keys, by section."""
    config = Config()
    texts = ["## At the top", _table(_field_rows(config))]
    for entry in fields(config):
        section = getattr(config, entry.name)
        if is_dataclass(section):
            texts += [f"## `[{entry.name}]`", _first_line(type(section)), _table(_field_rows(section))]
    return "\n\n".join(texts)


def task_keys() -> str:
    """Return the further keys of `[task]`: by kind, and for all tables."""
    texts = [_entry(f'kind = "{kind}"', load("kind", kind, TASKS)) for kind in TASKS]
    texts += [_entry(f'form = "{form.__name__}"', form) for form in (synthetic.quadratic, synthetic.mixture)]
    return "\n\n".join([*texts, "### Every table", _table(_field_rows(TableOptions()))])


def model_keys() -> str:
    """Return the further keys of `[model]`, by name."""
    return "\n\n".join(_entry(f'name = "{name}"', load("name", name, MODELS)) for name in MODELS)


def import_keys() -> str:
    """Return the keys of `partita import`, by kind."""
    known = SOURCES | TABLES
    return "\n\n".join(_entry(f"partita import {kind}", load("kind", kind, known)) for kind in known)


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


def _entry(title: str, target: Callable[..., Any]) -> str:
    return "\n\n".join([f"### `{title}`", _first_line(target), _table(_argument_rows(target))])


def _field_rows(section: Any) -> Iterator[Row]:
    meanings = field_docs(type(section))
    for entry in fields(section):
        value = getattr(section, entry.name)
        if entry.name not in ("options", "made_with") and not is_dataclass(value):
            yield entry.name, value, meanings[entry.name]


def _argument_rows(target: Callable[..., Any]) -> Iterator[Row]:
    meanings = _arguments(target)
    if isinstance(target, type) and is_dataclass(target):
        meanings = field_docs(target)
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and name not in POSITIONAL:
            yield name, parameter.default, meanings.get(name, "")


def _arguments(target: Callable[..., Any]) -> dict[str, str]:
    """Return the description of each argument in a function's docstring."""
    _, _, section = (inspect.getdoc(target) or "").partition("\nArgs:\n")
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _table(rows: Iterator[Row]) -> str:
    lines = [f"| `{name}` | {_default(value)} | {_in_cell(meaning)} |" for name, value, meaning in rows]
    return "\n".join(["| key | default | meaning |", "| --- | --- | --- |", *lines]) if lines else ""


def _default(value: Any) -> str:
    if value is None:
        return "not set"
    return "required" if value is inspect.Parameter.empty else f"`{json.dumps(value)}`"


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _first_line(target: Any) -> str:
    return (inspect.getdoc(target) or "").partition("\n")[0]
