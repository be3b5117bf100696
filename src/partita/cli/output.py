"""The output of commands: messages and progress on the error stream, results on the output."""

import argparse
import io
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from partita.shown import shown_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from partita.report.tables import table as report_tables
    from partita.training.pipeline import RoundCallback


def log(options: argparse.Namespace, text: str) -> None:
    """Print a message to the error stream, unless `--quiet` is given."""
    if not options.quiet:
        print(shown_lines(text), file=sys.stderr)


def console(options: argparse.Namespace) -> "Console":
    """Return the console for progress: the error stream, or none with `--quiet` or `--json`."""
    from rich.console import Console

    return Console(stderr=True, quiet=options.quiet or options.json)


def json_printer(options: argparse.Namespace) -> "RoundCallback | None":
    """Return a watcher that prints every round as JSON, None if that is not wanted."""
    if not options.json or options.quiet:
        return None
    return lambda line, done, total: print_json({**line, "done": done, "total": total})


def print_json(values: Mapping[str, Any]) -> None:
    """Print values as one line of JSON."""
    print(json.dumps(values), flush=True)


def print_table(table: "Table") -> None:
    """Print a table in full width, however narrow the terminal."""
    from rich.console import Console

    console = Console()
    whole = console.measure(table, options=console.options.update(max_width=sys.maxsize))
    width, text = max(console.width, whole.maximum), _Text()
    # Not printed by rich itself, which ends the process where nobody reads.
    Console(file=text, width=width, force_terminal=console.is_terminal).print(table)
    print(text.getvalue(), end="")


def print_notes(table: "report_tables.Table") -> None:
    """Print the notes below a table."""
    for note in table.notes:
        print(shown_lines(note))


class _Text(io.StringIO):
    """A text in memory that is printed later: rich draws lines that its encoding has."""

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The encoding of the output."""
        return sys.stdout.encoding or "utf-8"
