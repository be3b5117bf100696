"""Every key of a config with its default and what it means, as a TOML file that can be edited and run."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import tomli_w

from partita.config.schema import Config
from partita.config.sections import included_in, settings_of
from partita.methods.registry import names as method_names
from partita.server.registry import OPTIMIZERS


def reference(config: Any = None) -> str:
    """Return all keys of a config, its defaults unless one is given, each below what it means."""
    return "\n".join(_lines(config or Config())).strip() + "\n"


def _lines(section: Any) -> Iterator[str]:
    meanings = field_docs(type(section))
    for entry in sorted(fields(section), key=lambda entry: entry.name == "options"):
        value = getattr(section, entry.name)
        if is_dataclass(value):
            yield from ("", *_comment(inspect.getdoc(value) or ""), f"[{entry.name}]")
            yield from _lines(value)
        elif entry.name != "made_with":
            yield from _comment(meanings[entry.name])
            yield from _setting(entry.name, value)


def _setting(name: str, value: Any) -> Iterator[str]:
    if value is None:
        yield f"# {name} ="
    elif isinstance(value, Mapping) and name != "options":
        yield f"{name} = {{}}"
    elif name != "options":
        yield tomli_w.dumps({name: value}).strip()


def _comment(text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, 96, initial_indent="# ", subsequent_indent="# ")


def field_docs(kind: type) -> dict[str, str]:
    """Return the docstring of each field of a dataclass, inherited and included ones too."""
    docs: dict[str, str] = {}
    for owner in included_in(kind):
        docs |= {name: text for name, text in field_docs(owner).items() if name in settings_of(owner)}
    for owner in reversed(kind.__mro__):
        if is_dataclass(owner):
            docs |= _docstrings(owner)
    return docs


def _docstrings(kind: type) -> dict[str, str]:
    """Return the docstrings below the fields in the source of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        entry.target.id: _text_of(text)
        for entry, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)
    }


def _text_of(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        text = " ".join(str(node.value.value).split())
        text = text.replace("{methods}", ", ".join(method_names()))
        return text.replace("{server_optimizers}", ", ".join(OPTIMIZERS))
    return ""
