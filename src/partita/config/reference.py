"""Every key of a config with its default and what it means, as a TOML file that can be edited and run.

The text is generated from the classes of a config. `partita config` prints the copy in `reference.toml`, so
that it does not wait for torch. `python -m partita.config.reference` writes the copy, and a test compares it.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import tomli_w

from partita.config.sections import included_in, settings_of
from partita.methods import registry as methods
from partita.server import registry as servers

Key = tuple[str, Any, str]
"""A key, its default (`inspect.Parameter.empty` where it has none) and its meaning."""
FILE = Path(__file__).with_name("reference.toml")
"""The generated text, with lists of names left open and comments not wrapped."""
_NAMING = {"TaskConfig": "task", "ModelConfig": "model"}
"""The sections with further keys, which are arguments of the function that they name."""


def reference() -> str:
    """Return all keys of a config with their defaults, each below what it means."""
    lines = _filled(FILE.read_text(encoding="utf-8")).splitlines()
    wrapped = [part for line in lines for part in (_wrapped(line) if line.startswith("# ") else [line])]
    return "\n".join(wrapped) + "\n"


def generate() -> str:
    """Return the text of `reference.toml`."""
    from partita.config.schema import Config  # Imports torch.

    return "\n".join(_lines(Config())).strip() + "\n"


def field_docs(kind: type) -> dict[str, str]:
    """Return the docstring of each field of a dataclass, inherited and included ones too."""
    return {name: _filled(text) for name, text in _field_docs(kind).items()}


def keys_of(section: Any) -> Iterator[Key]:
    """Yield the keys of a section of the config, or of another dataclass, without inner sections."""
    meanings = field_docs(type(section))
    for entry in fields(section):
        value = getattr(section, entry.name)
        if entry.name not in ("options", "made_with") and not is_dataclass(value):
            yield entry.name, value, meanings[entry.name]


def arguments_of(function: Callable[..., Any]) -> Iterator[Key]:
    """Yield the arguments of a function or a class, which are keys of a section that names it."""
    meanings = field_docs(function) if isinstance(function, type) and is_dataclass(function) else {}
    _, _, described = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", described, re.MULTILINE):
        meanings[name] = " ".join(text.split())
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            yield name, parameter.default, meanings.get(name, "")


def function_keys(section: str) -> Iterator[tuple[str, str, list[Key]]]:
    """Yield the further keys of `[task]` or `[model]`: when they apply, a summary, and the keys."""
    from partita.config.loading import MODELS, TASKS, load  # Imports torch.
    from partita.data.options import UNSEEN, TableOptions
    from partita.tasks.synthetic import FORMS

    choice, known = {"task": ("kind", TASKS), "model": ("name", MODELS)}[section]
    for name in known:
        function = load(choice, name, known)
        keys = [key for key in arguments_of(function) if key[0] != UNSEEN]
        yield f'{choice} = "{name}"', _summary(function), keys
    if section == "task":
        for name, function in FORMS.items():
            yield f'form = "{name}"', _summary(function), list(arguments_of(function))
        yield "image, text, speech and tabular", first_line(TableOptions), list(keys_of(TableOptions()))
        share = "the share of training examples held out for validation."
        yield "every task", "Held-out validation.", [("validation", 0.0, share)]


def default_text(value: Any) -> str:
    """Return a default as TOML has it; `required` where there is none, `not set` for None."""
    if value is None:
        return "not set"
    return "required" if value is inspect.Parameter.empty else json.dumps(value)


def first_line(target: Any) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(target) or "").partition("\n")[0]


def _summary(function: Callable[..., Any]) -> str:
    """Return what a function returns, or what a class is, from the first line of its docstring."""
    text = first_line(function).removeprefix("Return ")
    return text[0].upper() + text[1:]


def _lines(section: Any) -> Iterator[str]:
    meanings = _field_docs(type(section))
    entries = [(entry, getattr(section, entry.name)) for entry in fields(section)]
    for entry, value in sorted(entries, key=lambda each: (is_dataclass(each[1]), each[0].name == "options")):
        if is_dataclass(value):
            yield from ("", f"# {inspect.getdoc(value)}", f"[{entry.name}]")
            yield from _lines(value)
        elif entry.name != "made_with":
            yield f"# {meanings[entry.name]}"
            yield from _setting(entry.name, value)
    if type(section).__name__ in _NAMING:
        yield from _further(_NAMING[type(section).__name__])


def _further(section: str) -> Iterator[str]:
    """Yield the keys that a section has by what it names, as comments."""
    for applies, about, keys in function_keys(section):
        yield f"# {applies}: {about}"
        for name, value, meaning in keys:
            yield f"#   {name} ({default_text(value)}): {meaning}"


def _setting(name: str, value: Any) -> Iterator[str]:
    if value is None:
        yield f"# {name} ="
    elif isinstance(value, Mapping) and name != "options":
        yield f"{name} = {{}}"
    elif name != "options":
        yield tomli_w.dumps({name: value}).strip()


def _wrapped(comment: str) -> list[str]:
    indent = "#     " if comment.startswith("#   ") else "# "
    return textwrap.wrap(comment, 96, subsequent_indent=indent)


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
    FILE.write_text(generate(), encoding="utf-8")
