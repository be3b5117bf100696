"""Pages of documentation, executed: every block of code of a page, in order, in a folder of its own.

A block stands between two lines of ```, and its language says what becomes of it: `python` is executed, all
of a page in one namespace; `sh` are commands; `toml` is checked to be a config; `text` is only shown. A block
with a title, ```python title="forms.py", is what a reader saves as that file, and is written to it instead.

Comments before a block say what else there is to know. Neither the site nor GitHub shows them.

    <!-- given: docs/tutorial.md -->              the files that another page has its reader save are here too;
                                                  or that file itself, where it is no page
    <!-- with: personalize.rounds=2 ... -->       given to commands that take a config, to make them short
    <!-- output -->                               the text below is what the block above has printed
    <!-- slow -->                                 executed by the slow tests alone
    <!-- executed by: tests/x.py -->              not executed here, but by that test, which names the page
    <!-- not run: why -->                         not executed

A whole block inside a comment is executed like any other: what a reader has done or has already.
"""

import contextlib
import inspect
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import partita
from partita.cli import main
from partita.config.imports import MODELS, TASKS, load
from partita.config.reading import config_of
from partita.data.options import options_of
from partita.methods import registry

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_MARKS = ("given", "with", "output", "slow", "executed by", "not run")
_COMMAND = re.compile(r"\s*(\$ |partita |python |pip |make |git )")
_TAKES_CONFIG = re.compile(r"^(partita (?:run|compare|tune|describe)\b(?!.*--resume)[^#&|\n]*)", re.MULTILINE)
_SHELL = {"&", "&&", "|", "||", ";", "<", ">"}
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


@dataclass(frozen=True)
class Block:
    """A block of code, and what is said of it."""

    place: str
    """The page and the line at which it begins."""
    language: str
    title: str
    text: str
    marks: Mapping[str, str] = field(default_factory=dict)


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, in order.

    Raises:
        ValueError: a block or a mark that nobody would execute.
    """
    blocks: list[Block] = []
    marks: dict[str, str] = {}
    lines = iter(enumerate(page.read_text().splitlines(), start=1))
    for number, line in lines:
        place = f"{page.name}:{number}"
        if mark := re.fullmatch(r"<!-- ([a-z ]+?)(?:: (.*))? -->", line):
            if mark[1] in _MARKS:
                marks[mark[1]] = mark[2] or ""
            elif mark[1] != "generated":
                raise ValueError(f"{place}: there is no mark {mark[1]!r}, only {', '.join(_MARKS)}.")
        elif "```" in line:
            blocks.append(_block(place, line, lines, marks))
            marks = {}
        elif marks and line and not line.startswith("<!--"):
            raise ValueError(f"{place}: {', '.join(marks)} must stand before a block.")
    return blocks


def _block(place: str, first: str, lines: Iterator[tuple[int, str]], marks: Mapping[str, str]) -> Block:
    opened = re.fullmatch(r'```(python|sh|toml|text)(?: title="([\w.-]+)")?', first)
    if not opened:
        raise ValueError(f"{place}: a block must be python, sh, toml or text, got {first!r}.")
    inside = [f"{line}\n" for _, line in takewhile(lambda entry: entry[1] != "```", lines)]
    if opened[1] == "text" and any(map(_COMMAND.match, inside)):
        raise ValueError(f"{place}: a block of text has a command, which would not be executed.")
    return Block(place, opened[1], opened[2] or "", "".join(inside), marks)


def why_not_run(block: Block, *, slow: bool) -> str:
    """Return why a block is not executed, nothing where it is."""
    if "not run" in block.marks:
        return block.marks["not run"] or "no reason is given"
    if "executed by" in block.marks:
        return f"it is executed by {block.marks['executed by']}"
    return "it is slow" if "slow" in block.marks and not slow else ""


def execute(page: Path, *, slow: bool = False) -> None:
    """Execute the blocks of a page in the folder that we are in."""
    names: dict[str, Any] = {"__name__": "page"}
    printed: str | None = ""
    for block in blocks_of(page):
        if "given" in block.marks:
            _give(block.marks["given"])
        if "output" in block.marks:
            assert printed is None or not (missing := unprinted(block.text, printed)), (
                f"{block.place}: the block above does not print {missing!r}, but\n{printed}"
            )
        elif why_not_run(block, slow=slow):
            printed = None
        elif block.language != "text":
            printed = _RUN[block.language](block, names)


def _give(name: str) -> None:
    """Put the files that another page has its reader save, or a file that is no page, in this folder."""
    if name.endswith(".md"):
        for block in blocks_of(ROOT / name):
            _save(block)
    else:
        Path(name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, name)


def _save(block: Block) -> None:
    if block.title:
        Path(block.title).write_text(block.text)


def _python(block: Block, names: dict[str, Any]) -> str:
    if block.title:
        _save(block)
        return ""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(compile(block.text, block.place, "exec"), names)
    return told.getvalue()


def _commands(block: Block, _: dict[str, Any]) -> str:
    """Run commands: those of ours in this process, others, and what only a shell understands, in a shell."""
    text = _TAKES_CONFIG.sub(rf"\1 {block.marks.get('with', '')} ", block.text)
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    if all(words[0] == "partita" and not _SHELL & {*words} for words in lines if words):
        return "".join(_partita(words[1:], block.place) for words in lines if words)
    places = [str(Path(sys.executable).parent), os.environ["PATH"]]
    sources = [str(Path(partita.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    paths = {"PATH": os.pathsep.join(places), "PYTHONPATH": os.pathsep.join(filter(None, sources))}
    shell = ["bash", "-euo", "pipefail", "-c", text]
    return subprocess.run(shell, env=os.environ | paths, check=True, capture_output=True, text=True).stdout


def _partita(arguments: list[str], place: str) -> str:
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        try:
            code = main(arguments)
        except SystemExit as end:
            code = end.code
    assert not code, f"{place}: `partita {shlex.join(arguments)}` ends with {code}."
    return told.getvalue()


def _config(block: Block, _: dict[str, Any]) -> str:
    check_config(block.text)
    _save(block)
    return ""


def check_config(text: str) -> None:
    """Raise where a text is no config: an unknown key, a value of another type."""
    config = config_of(tomllib.loads(text))
    if config.task.kind in TASKS:
        _check_task(load("task.kind", config.task.kind, TASKS), config.task.options)
    if config.model.name in MODELS:
        inspect.signature(load("model.name", config.model.name, MODELS)).bind_partial(**config.model.options)
    for method, settings in config.compare.settings.items():
        assert method.removesuffix("-stateless") in registry.names(), f"There is no method {method!r}."
        config_of(settings)


def _check_task(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise where keys are those of no table, or are not the function's own; every task takes `validation`."""
    own = inspect.signature(function)
    others = {key: value for key, value in options.items() if key not in own.parameters}
    if "table" in own.parameters:
        options_of(others)
    else:
        own.bind_partial(**{key: value for key, value in others.items() if key != "validation"})


_RUN: Mapping[str, Callable[[Block, dict[str, Any]], str]] = {
    "python": _python,
    "sh": _commands,
    "toml": _config,
}


def unprinted(shown: str, printed: str) -> str:
    """Return the first line that is shown and was not printed, in this order; nothing where all were.

    Spaces and rules do not count. Numbers may differ a little, since bits do between kinds of CPU: decimals by
    0.03, others by 3.
    """
    rest = iter(_lines(printed))
    return next((line for line in _lines(shown) if not any(_alike(line, other) for other in rest)), "")


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if words := " ".join(line.replace("─", "").split()):
            yield words


def _alike(line: str, other: str) -> bool:
    if _NUMBER.sub("0", line) != _NUMBER.sub("0", other):
        return False
    pairs = zip(_NUMBER.findall(line), _NUMBER.findall(other), strict=True)
    return all(abs(_value(a) - _value(b)) <= (0.03 if "." in a else 3) for a, b in pairs)


def _value(number: str) -> float:
    return float(number.replace(",", ""))
