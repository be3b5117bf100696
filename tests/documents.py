"""Execute pages of documentation: every block of code, in order, in a folder of its own.

A block stands between two lines of ```, and its language says how it is executed: all `python` blocks of a page
run in one namespace; `sh` blocks are commands; `toml` blocks are checked as configs; `text` is only shown. A block
with a title, ```python title="forms.py", is written to that file instead, as a reader would save it.

Comments before a block control its execution. Neither the site nor GitHub shows them.

    <!-- given: docs/tutorial.md -->              first save the titled blocks of another page here,
                                                  or copy that file, if it is no page
    <!-- with: personalize.rounds=2 ... -->       overrides for commands that take a config, to shorten them
    <!-- output -->                               the text below is the output of the block above;
                                                  `make numbers` writes it (tests/update_outputs.py)
    <!-- slow -->                                 executed by the slow tests only
    <!-- executed by: tests/x.py -->              executed by that test, which names the page
    <!-- not run: why -->                         not executed

A whole block inside a comment is executed like any other: a step that the reader has done already.
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
from unittest.mock import patch

import partita
from partita.cli import main
from partita.config.loading import MODELS, TASKS, load
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
    """A block of code and its marks."""

    page: str
    """The page's file name."""
    line: int
    """The number of the line with the opening ```."""
    language: str
    title: str
    text: str
    marks: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The page and the line, for messages."""
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, in order.

    Raises:
        ValueError: The language of a block or a mark is unknown, or a mark has no block.
    """
    blocks: list[Block] = []
    marks: dict[str, str] = {}
    lines = iter(enumerate(page.read_text().splitlines(), start=1))
    for number, line in lines:
        place = f"{page.name}:{number}"
        if mark := re.fullmatch(r"<!-- ([a-z ]+?)(?:: (.*))? -->", line):
            if mark[1] in _MARKS:
                marks[mark[1]] = mark[2] or ""
            elif mark[1] == "generated":
                for _, skipped in lines:
                    if skipped == "<!-- end -->":
                        break
            else:
                raise ValueError(f"{place}: unknown mark {mark[1]!r}; the marks are {', '.join(_MARKS)}.")
        elif "```" in line:
            language, title, text = _read_block(place, line, lines)
            blocks.append(Block(page.name, number, language, title, text, marks))
            marks = {}
        elif marks and line and not line.startswith("<!--"):
            raise ValueError(f"{place}: {', '.join(marks)} must stand before a block.")
    return blocks


def _read_block(place: str, first: str, lines: Iterator[tuple[int, str]]) -> tuple[str, str, str]:
    """Return a block's language, title and text."""
    opened = re.fullmatch(r'```(python|sh|toml|text)(?: title="([\w.-]+)")?', first)
    if not opened:
        raise ValueError(f"{place}: a block must be python, sh, toml or text, got {first!r}.")
    inside = [f"{line}\n" for _, line in takewhile(lambda entry: entry[1] != "```", lines)]
    if opened[1] == "text" and any(map(_COMMAND.match, inside)):
        raise ValueError(f"{place}: a text block contains a command, which would not be executed.")
    return opened[1], opened[2] or "", "".join(inside)


def why_not_run(block: Block, *, slow: bool) -> str:
    """Return the reason why a block is not executed, empty if it is executed."""
    if "not run" in block.marks:
        return block.marks["not run"] or "no reason is given"
    if "executed by" in block.marks:
        return f"it is executed by {block.marks['executed by']}"
    return "it is slow" if "slow" in block.marks and not slow else ""


@contextlib.contextmanager
def reader_folder(folder: Path) -> Iterator[None]:
    """Work in a reader's folder, where modules that a page has the reader save can be imported."""
    environment = {"COLUMNS": "120", "XDG_CACHE_HOME": str(folder / "cache")}
    with (
        contextlib.chdir(folder),
        patch.dict(os.environ, environment),
        patch.object(sys, "path", [str(folder), *sys.path]),
    ):
        try:
            yield
        finally:
            forget_modules_in(folder)


def forget_modules_in(folder: Path) -> None:
    """Remove a folder's modules from `sys.modules`, in place."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


def execute(page: Path, *, slow: bool = False) -> None:
    """Execute a page's blocks in the current folder and check the outputs that the page shows."""
    for block, printed in outputs_of(page, slow=slow):
        missing = unprinted(block.text, printed)
        assert not missing, f"{block.place}: the block above does not print {missing!r}, but\n{printed}"


def outputs_of(page: Path, *, slow: bool = False) -> Iterator[tuple[Block, str]]:
    """Execute a page's blocks in the current folder; yield each block of output with the text printed."""
    names: dict[str, Any] = {"__name__": "page"}
    printed: str | None = ""
    for block in blocks_of(page):
        if "given" in block.marks:
            _give(block.marks["given"])
        if "output" in block.marks:
            if printed is not None:
                yield block, printed
        elif why_not_run(block, slow=slow):
            printed = None
        elif block.language != "text":
            printed = _RUN[block.language](block, names)


def _give(name: str) -> None:
    """Save the titled blocks of another page, or copy a file that is no page, to the current folder."""
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
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, block.place, "exec"), names)
    return printed.getvalue()


def _commands(block: Block, _: dict[str, Any]) -> str:
    """Run commands: plain `partita` commands in this process, all others in a shell."""
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
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            code = main(arguments)
        except SystemExit as end:
            code = end.code
    assert not code, f"{place}: `partita {shlex.join(arguments)}` ends with {code}."
    return printed.getvalue()


def _config(block: Block, _: dict[str, Any]) -> str:
    check_config(block.text)
    _save(block)
    return ""


def check_config(text: str) -> None:
    """Raise an error if a text is no valid config: an unknown key, or a value of another type."""
    config = config_of(tomllib.loads(text))
    if config.task.kind in TASKS:
        _check_task(load("task.kind", config.task.kind, TASKS), config.task.options)
    if config.model.name in MODELS:
        inspect.signature(load("model.name", config.model.name, MODELS)).bind_partial(**config.model.options)
    for method, settings in config.compare.settings.items():
        assert method.removesuffix("-stateless") in registry.names(), f"There is no method {method!r}."
        config_of(settings)


def _check_task(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise an error for a key that neither the task nor its table has; every task takes `validation`."""
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
    """Return the first shown line that was not printed in this order, or "" if all were.

    Spaces and rules are ignored. Numbers may differ a little, because bits differ between kinds of CPU: decimals
    by 0.03, others by 3.
    """
    rest = iter(_lines(printed))
    return next((line for line in _lines(shown) if not any(_alike(line, other) for other in rest)), "")


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if words := words_of(line):
            yield words


def words_of(line: str) -> str:
    """Return a line without rules and repeated spaces."""
    return " ".join(line.replace("─", "").split())


def form_of(line: str) -> str:
    """Return a line's words with every number replaced by 0."""
    return _NUMBER.sub("0", words_of(line))


def _alike(line: str, other: str) -> bool:
    if form_of(line) != form_of(other):
        return False
    pairs = zip(_NUMBER.findall(line), _NUMBER.findall(other), strict=True)
    return all(abs(_value(a) - _value(b)) <= (0.03 if "." in a else 3) for a, b in pairs)


def _value(number: str) -> float:
    return float(number.replace(",", ""))
