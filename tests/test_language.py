"""Everything a person reads is in plain, standard, American English."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = sorted([
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(ROOT / "examples").glob("*.md"),
])  # fmt: skip

RIDDLES = re.compile(r"(What|Whose|Which|Who|That)\b")
"""Words that turn a docstring's first line into a riddle."""
RETIRED = {
    r"pictures?": "image",
    r"stand-?ins?": "placeholder",
    r"made[- ]up": "placeholder",
    r"learnt": "learned",
    r"\w*(?:colour|behaviour|neighbour|favour)\w*": "American spelling",
    r"\w*(?:ersonalis|egularis|ummaris|inimis|nitialis|ormalis|tandardis|okenis)\w*": "-ize",
    r"(?:go|goes|going|gone) on with": "resume",
    r"Mind:": "Warning:",
    r"troubles?": "warning",
    r"told (?:of|that)|is told": "callback",
    r"the worst tenth": "10th percentile",
    r"in the middle": "median",
    r"whose some": "the device id of each row",
    r"that which": "the",
    r"begun": "started",
    r"anew": "again",
    r"was heard": "replied",
    r"own code": "user code",
    r"towards": "toward",
    r"left out:": "default:",
    r"least_train|least_test|judged by": "min_train_examples, evaluated on",
}
"""Words that we no longer write, with the ones that replaced them."""


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of every docstring, those under fields and constants included."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text


@cache
def texts() -> list[tuple[str, str]]:
    """Return the place and the text of every line that a person reads: string literals, comments and pages."""
    return list(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    for path in SOURCES:
        source = path.read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value
        for number, line in enumerate(source.splitlines(), start=1):
            if line.lstrip().startswith("#"):
                yield f"{path.relative_to(ROOT)}:{number}", line
    for path in PAGES:
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def test_no_docstring_begins_as_a_riddle() -> None:
    found = [f"{place}: {text.splitlines()[0]}" for place, text in docstrings() if RIDDLES.match(text)]

    assert not found, "\n".join(found)


@pytest.mark.parametrize("word", RETIRED)
def test_retired_words_are_not_used(word: str) -> None:
    pattern = re.compile(rf"\b(?:{word})(?!\w)")

    found = [f"{place}: {text.strip()[:100]}" for place, text in texts() if pattern.search(text)]

    assert not found, f"write {RETIRED[word]!r}:\n" + "\n".join(found)
