"""Measure the numbers of the documentation again: execute pages and rewrite the outputs that they show.

    make numbers                          all pages that show outputs
    python tests/update_outputs.py README.md     some pages

A page may show only some of the lines that a command prints; it keeps showing those, with their new numbers. If a
shown line is no longer printed in the same form, the page shows the whole output, to be cut by hand. Numbers in the
text around an output are not found: read it again when this reports a change.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from documents import PAGES, Block, blocks_of, form_of, outputs_of, reader_folder, words_of


def main(arguments: Sequence[str]) -> None:
    """Update pages given by their paths, or all, and print where something has changed."""
    pages = [Path(argument).resolve() for argument in arguments] or PAGES
    for page in pages:
        if not any("output" in block.marks for block in blocks_of(page)):
            continue
        with tempfile.TemporaryDirectory() as folder, reader_folder(Path(folder)):
            changed = update_page(page)
        print(f"{page.name}: {', '.join(f'line {line}' for line in changed) or 'no change'}", flush=True)


def update_page(page: Path) -> list[int]:
    """Execute a page in the current folder, rewrite its outputs in place and return the lines of changed ones."""
    outputs = list(outputs_of(page, slow=True))
    lines = page.read_text().splitlines()
    changed = []
    for block, printed in reversed(outputs):  # from the end: line numbers above stay valid
        new = updated(block.text, printed).splitlines()
        if new != block.text.splitlines():
            changed.insert(0, block.line)
        lines[_lines_inside(block)] = new
    page.write_text("\n".join(lines) + "\n")
    return changed


def _lines_inside(block: Block) -> slice:
    return slice(block.line, block.line + len(block.text.splitlines()))


def updated(shown: str, printed: str) -> str:
    """Return the printed lines that have the form of the shown ones, or all if one of those is missing."""
    lines = [line.rstrip() for line in printed.splitlines()]
    found: list[int] = []
    for line in filter(words_of, shown.splitlines()):
        start = found[-1] + 1 if found else 0
        same = (i for i in range(start, len(lines)) if form_of(lines[i]) == form_of(line))
        if (index := next(same, None)) is None:
            return "\n".join(lines).strip("\n") + "\n"
        found.append(index)
    return "".join(f"{line}\n" for line in _with_rules(lines, found))


def _with_rules(lines: Sequence[str], found: Sequence[int]) -> list[str]:
    """Return the lines found, and the blank lines and rules between two that no other line separates."""
    kept: list[str] = []
    for before, index in zip([None, *found], found, strict=False):
        between = lines[before + 1 : index] if before is not None else []
        if not any(map(words_of, between)):
            kept += between
        kept.append(lines[index])
    return kept


if __name__ == "__main__":
    main(sys.argv[1:])
