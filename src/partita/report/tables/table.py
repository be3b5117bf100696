"""Tables: one definition, written for the terminal, as CSV, Markdown, LaTeX, HTML and as JSON values."""

import csv
import html
import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

from rich import table as rich_table
from rich.box import SIMPLE_HEAD
from rich.markup import escape

from partita.durable import replace_file
from partita.report.tables.entries import (
    Cited,
    Entry,
    Interval,
    MeanStd,
    Reached,
    Rounded,
    Share,
    Signed,
    latex,
    markdown,
    plain,
)
from partita.report.tables.escaping import csv_text, latex_text, markdown_text
from partita.shown import shown

_WIDTH = 100
"""Characters of a line in the terminal beyond which headings and names take several lines."""
_HEADING = 8
"""Characters of a heading on one line, at least."""
_FIRST = 24
"""Characters of an entry of the first column on one line, at most."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table."""

    name: str
    """The name of its files, without the suffix."""
    title: str
    columns: Sequence[str]
    """The first column holds text."""
    rows: Sequence[Sequence[Entry]]
    notes: Sequence[str] = ()
    """Sentences below the table."""
    shown: Sequence[str] = ()
    """The columns that are shown, in this order; none: all. CSV and JSON have all columns."""
    elsewhere: Sequence[str] = ()
    """Of the notes, those that a page has elsewhere and does not repeat."""

    @property
    def records(self) -> list[dict[str, str | int | float]]:
        """The rows as in the CSV, each a mapping by column: `pandas.DataFrame(table.records)`."""
        columns = csv_columns(self)
        return [dict(zip(columns, row, strict=True)) for row in csv_rows(self)]

    def __str__(self) -> str:
        """Return the table in Markdown."""
        return to_markdown(self)

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return to_html(self)


def visible(table: Table) -> Table:
    """Return a table with the columns that are shown."""
    if not table.shown:
        return table
    places = [list(table.columns).index(column) for column in table.shown]
    rows = [[row[place] for place in places] for row in table.rows]
    return replace(table, columns=table.shown, rows=rows, shown=())


def write_tables(tables: Sequence[Table], folder: Path) -> None:
    """Write every table as CSV, Markdown and LaTeX."""
    folder.mkdir(exist_ok=True)
    formats = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
    for table in tables:
        for suffix, to_text in formats.items():
            replace_file(folder / f"{table.name}.{suffix}", to_text(table).encode())


def to_terminal(table: Table) -> rich_table.Table:
    """Return the table for a terminal; in a wide one, long headings and names take several lines."""
    table = visible(table)
    printed = rich_table.Table(title=escape(shown(table.title)), box=SIMPLE_HEAD)
    columns = list(map(shown, table.columns))
    texts = [[plain(entry) for entry in row] for row in table.rows]
    widths = [max([_HEADING, *(len(row[place]) for row in texts)]) for place in range(len(columns))]
    whole = [max(len(column), width) + 3 for column, width in zip(columns, widths, strict=True)]
    is_wide = sum(whole) > _WIDTH
    for column, width, is_text in zip(columns, widths, text_columns(table), strict=True):
        heading = _wrapped(column, width) if is_wide else column
        printed.add_column(escape(heading), justify="left" if is_text else "right")
    for first, *others in texts:
        printed.add_row(*map(escape, [_wrapped(first, _FIRST) if is_wide else first, *others]))
    return printed


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def to_values(table: Table) -> dict[str, Any]:
    """Return the table as JSON values: its title, its rows by column and its notes."""
    rows = [dict(zip(table.columns, map(_json_value, row), strict=True)) for row in table.rows]
    return {"title": table.title, "rows": rows, "notes": list(table.notes)}


def _json_value(entry: Entry) -> str | float | Mapping[str, Any] | None:
    """Return an entry; one with several fields as a mapping."""
    return asdict(entry) if is_dataclass(entry) else entry


def to_csv(table: Table) -> str:
    """Return the table as CSV: every number in full, each field of an entry in a column of its own.

    A text that a spreadsheet would run as a formula begins with an apostrophe.
    """
    written = io.StringIO()
    rows = [[csv_text(cell) if isinstance(cell, str) else cell for cell in row] for row in csv_rows(table)]
    csv.writer(written, lineterminator="\n").writerows([map(csv_text, csv_columns(table)), *rows])
    return written.getvalue()


def csv_columns(table: Table) -> list[str]:
    """Return the names of the columns that the CSV has."""
    columns = zip(table.columns, _fields(table), strict=True)
    return [f"{column} {field}".strip() for column, own in columns for field in own]


def csv_rows(table: Table) -> list[list[str | int | float]]:
    """Return the rows that the CSV has."""
    fields = _fields(table)
    return [
        [_csv_value(entry, field) for entry, own in zip(row, fields, strict=True) for field in own]
        for row in table.rows
    ]


def _fields(table: Table) -> list[Sequence[str]]:
    """Return the fields of each column's entries that the CSV has columns for."""
    return [_fields_of([row[place] for row in table.rows]) for place in range(len(table.columns))]


_FIELDS: Mapping[type, Sequence[str]] = {
    MeanStd: ("mean", "std", "is_best"),
    Interval: ("value", "low", "high"),
    Signed: ("mean", "std"),
    Share: ("count", "of"),
    Reached: ("mean", "seeds"),
}


def _fields_of(column: Sequence[Entry]) -> Sequence[str]:
    """Return the CSV columns that a column's entries need; one without a name for plain entries."""
    found = {type(entry) for entry in column} & _FIELDS.keys()
    return next((_FIELDS[kind] for kind in found), ("",))


def _csv_value(entry: Entry, field: str) -> str | int | float:
    value: Any = getattr(entry, field) if type(entry) in _FIELDS else entry
    if isinstance(value, Rounded | Cited):
        value = value.value if isinstance(value, Rounded) else value.text
    return "" if value is None else int(value) if isinstance(value, bool) else value


def to_markdown(table: Table) -> str:
    """Return the table in Markdown, with its title and notes."""
    table = visible(table)
    rule = ["---" if is_text else "--:" for is_text in text_columns(table)]
    rows = [list(map(markdown, row)) for row in (table.columns, *table.rows)]
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])]
    notes = [f"\n{markdown_text(note)}" for note in table.notes]
    return "\n".join([f"**{markdown_text(table.title)}**", "", *lines, *notes]) + "\n"


def to_html(table: Table) -> str:
    """Return the table for a notebook, without colors of its own: light and dark themes have theirs."""
    table = visible(table)
    numbers = "text-align: right; white-space: nowrap; "
    styles = ["text-align: left; " if is_text else numbers for is_text in text_columns(table)]

    def line(entries: Sequence[Entry], tag: str) -> str:
        cells = zip(map(plain, entries), styles, strict=True)
        return "".join(
            f'<{tag} style="{style}padding: 0.1em 0.6em">{html.escape(text)}</{tag}>' for text, style in cells
        )

    rows = "".join(f"<tr>{line(row, 'td')}</tr>" for row in table.rows)
    notes = "".join(f"<p>{html.escape(shown(note))}</p>" for note in table.notes)
    return (
        f'<table><caption style="text-align: left">{html.escape(shown(table.title))}</caption>'
        f"<thead><tr>{line(table.columns, 'th')}</tr></thead><tbody>{rows}</tbody></table>"
        + (f"<details><summary>Notes</summary>{notes}</details>" if notes else "")
    )


def to_latex(table: Table) -> str:
    """Return the table in LaTeX, for the package booktabs."""
    table = visible(table)
    alignment = "".join("l" if is_text else "r" for is_text in text_columns(table))
    lines = [_latex_row(map(latex, row)) for row in table.rows]
    notes = [r"\par\smallskip\footnotesize " + latex_text(note) for note in table.notes]
    return "\n".join([
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_text(table.title)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        _latex_row(map(latex_text, table.columns)),
        r"\midrule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}",
        *notes,
        r"\end{table}",
        "",
    ])  # fmt: skip


def _latex_row(cells: Iterable[str]) -> str:
    """Return a row; what follows the row or the rule above must not look like an option of theirs."""
    row = " & ".join(cells) + r" \\"
    return "{}" + row if row.startswith(("[", "*")) else row


def text_columns(table: Table) -> list[bool]:
    """Return which columns hold text, the first one always; all others hold numbers."""
    columns = [[row[place] for row in table.rows] for place in range(len(table.columns))]
    return [
        not place or all(isinstance(e, str | Cited) for e in column) for place, column in enumerate(columns)
    ]
