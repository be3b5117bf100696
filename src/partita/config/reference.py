"""Every key of a config with its default and what it means, as a TOML file that can be edited and run.

The text is generated from the classes of a config. `partita config` prints the copy in `reference.toml`, so
that it does not wait for torch. `python -m partita.config.reference` writes the copy, and a test compares it.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import tomli_w

from partita.config.sections import included_in, settings_of
from partita.methods import registry as methods
from partita.server import registry as servers

FILE = Path(__file__).with_name("reference.toml")
"""The generated text, with lists of names left open and comments not wrapped."""


def reference() -> str:
    """Return all keys of a config with their defaults, each below what it means."""
    lines = _filled(FILE.read_text()).splitlines()
    wrapped = [part for line in lines for part in (_wrapped(line) if line.startswith("# ") else [line])]
    return "\n".join(wrapped) + "\n"


def generate() -> str:
    """Return the text of `reference.toml`."""
    from partita.config.schema import Config  # Imports torch.

    return "\n".join(_lines(Config())).strip() + "\n"


def field_docs(kind: type) -> dict[str, str]:
    """Return the docstring of each field of a dataclass, inherited and included ones too."""
    return {name: _filled(text) for name, text in _field_docs(kind).items()}


def _lines(section: Any) -> Iterator[str]:
    meanings = _field_docs(type(section))
    for entry in sorted(fields(section), key=lambda entry: entry.name == "options"):
        value = getattr(section, entry.name)
        if is_dataclass(value):
            yield from ("", f"# {inspect.getdoc(value)}", f"[{entry.name}]")
            yield from _lines(value)
        elif entry.name != "made_with":
            yield f"# {meanings[entry.name]}"
            yield from _setting(entry.name, value)


def _setting(name: str, value: Any) -> Iterator[str]:
    if value is None:
        yield f"# {name} ="
    elif isinstance(value, Mapping) and name != "options":
        yield f"{name} = {{}}"
    elif name != "options":
        yield tomli_w.dumps({name: value}).strip()


def _wrapped(comment: str) -> list[str]:
    return textwrap.wrap(comment, 96, subsequent_indent="# ")


def _filled(text: str) -> str:
    """Return a text with the names of methods and server optimizers in their places."""
    text = text.replace("{methods}", ", ".join(methods.names()))
    return text.replace("{server_optimizers}", ", ".join(servers.OPTIMIZERS))


def _field_docs(kind: type) -> dict[str, str]:
    docs: dict[str, str] = {}
    for owner in included_in(kind):
        docs |= {name: text for name, text in _field_docs(owner).items() if name in settings_of(owner)}
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
        return " ".join(str(node.value.value).split())
    return ""


if __name__ == "__main__":
    FILE.write_text(generate())
