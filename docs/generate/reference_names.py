"""The public API as Markdown, with signatures and docstrings."""

import enum
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cached_property
from typing import Any

import partita
from partita.config.reference import field_docs

TOPICS = {
    "Runs": ("api", "exports", "training", "runs", "studies", "progress"),
    "Tasks": ("tasks", "data", "errors"),
    "Partitions": ("partition",),
    "Models": ("models",),
    "Methods": ("methods",),
    "Server and executors": ("server", "executors", "protocol"),
}
"""Topics of the page, with the packages whose names belong to each."""


def names() -> str:
    """Return the entries of all public names, by topic."""
    packages = {name: _package_of(getattr(partita, name)) for name in partita.__all__}
    unknown = set(packages.values()) - {package for known in TOPICS.values() for package in known}
    if unknown:
        raise ValueError(
            f"`TOPICS` must include {', '.join(sorted(unknown))}: public names are defined there."
        )
    texts: list[str] = []
    for topic, known in TOPICS.items():
        texts += [f"## {topic}", *(_entry(name) for name, package in packages.items() if package in known)]
    return "\n\n".join(texts)


def _package_of(value: Any) -> str:
    kind = value if inspect.isroutine(value) or isinstance(value, type) else type(value)
    return kind.__module__.split(".")[1]


def _entry(name: str) -> str:
    value = getattr(partita, name)
    if not callable(value):
        return f"### `{name}`\n\n{_prose(type(value))}"
    texts = [f"### `{name}`"]
    if not (isinstance(value, type) and issubclass(value, enum.Enum | Exception)):
        texts.append(f"```python\n{name}{_signature(value)}\n```")
    texts.append(_prose(value))
    if isinstance(value, type):
        texts += ["\n".join(_own_fields(value)), *_members(value)]
    return "\n\n".join(text for text in texts if text)


def _own_fields(kind: type) -> Iterator[str]:
    inherited = {name for parent in kind.__mro__[1:] if is_dataclass(parent) for name in field_docs(parent)}
    for name, text in field_docs(kind).items() if is_dataclass(kind) else ():
        if text and (name not in inherited or name in vars(kind)):
            yield f"- `{name}`: {text}"


def _members(kind: type) -> Iterator[str]:
    settings = getattr(kind, "__dataclass_fields__", {})
    for name, member in vars(kind).items():
        if name.startswith("_") or name in settings or not inspect.getdoc(member):
            continue
        if inspect.isfunction(member):
            yield f"**`.{name}{_signature(member, max_length=1000)}`**\n\n{_prose(member)}"
        elif isinstance(member, property | cached_property):
            yield f"**`.{name}`**\n\n{_prose(member)}"


def _prose(value: Any) -> str:
    """Return a docstring as Markdown: arguments and errors as lists, examples as code blocks."""
    text = inspect.getdoc(value) or ""
    text = re.sub(r"^>>> (?:.+\n?)+", lambda found: f"```pycon\n{found[0]}\n```", text, flags=re.MULTILINE)
    text = re.sub(r"^(Args|Raises|Returns|Yields):$", r"\1:\n", text, flags=re.MULTILINE)
    text = re.sub(r"^ {4}(\w+): ", r"- `\1`: ", text, flags=re.MULTILINE)
    return re.sub(r"^ {8}", "    ", text, flags=re.MULTILINE)


def _signature(value: Callable[..., Any], *, max_length: int = 80) -> str:
    """Return a signature without module names; a long one has one argument per line."""
    signature = inspect.signature(value)
    shown = [p for name, p in signature.parameters.items() if name != "self" and not name.startswith("_")]
    texts = [_parameter(p) for p in shown]
    if named := [place for place, p in enumerate(shown) if p.kind is inspect.Parameter.KEYWORD_ONLY]:
        texts.insert(named[0], "*")
    result = signature.return_annotation
    arrow = "" if isinstance(value, type) or result is inspect.Signature.empty else f" -> {_type(result)}"
    line = f"({', '.join(texts)}){arrow}"
    return line if len(line) < max_length else "(\n    " + ",\n    ".join(texts) + f",\n){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    stars = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else ""
    text = f"{stars}{parameter.name}: {_type(parameter.annotation)}"
    return text if parameter.default is inspect.Parameter.empty else f"{text} = {_default(parameter.default)}"


def _default(value: Any) -> str:
    """Return a default as source code; `...` for one created by a factory."""
    if isinstance(value, enum.Enum):
        return value.name
    text = getattr(value, "__name__", repr(value))
    return "..." if text.startswith("<") else text


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+", "", text).replace("'Partition'", "Partition")
