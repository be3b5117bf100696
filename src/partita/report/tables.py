"""Tables: one definition, written for the terminal, as CSV, Markdown, LaTeX, HTML and as JSON values."""

import csv
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from rich import table as rich_table
from rich.box import SIMPLE_HEAD
from rich.markup import escape

from partita.durable import replace_file


@dataclass(frozen=True)
class MeanStd:
    """A mean over seeds, with its standard deviation if there are several."""

    mean: float
    std: float | None = None
    is_best: bool = False
    """Whether it is the best of its column, or within one standard deviation of the best."""


@dataclass(frozen=True)
class Interval:
    """A difference with its 95 % confidence interval, if it has one."""

    value: float
    low: float | None
    high: float | None
    seeds: int = 1
    """Number of seeds that it is over."""


@dataclass(frozen=True)
class Rounded:
    """A number displayed with one decimal."""

    value: float


@dataclass(frozen=True)
class Cited:
    """A text with the paper to cite for it, if any."""

    text: str
    paper: str = ""
    """The paper's key in `references.bib`."""


Entry = str | int | float | MeanStd | Interval | Rounded | Cited | None
"""The content of one cell of a table; None if the cell is empty."""


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


def write_tables(tables: Sequence[Table], folder: Path) -> None:
    """Write every table as CSV, Markdown and LaTeX."""
    folder.mkdir(exist_ok=True)
    formats = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
    for table in tables:
        for suffix, to_text in formats.items():
            replace_file(folder / f"{table.name}.{suffix}", to_text(table).encode())


def to_terminal(table: Table) -> rich_table.Table:
    """Return the table for a terminal."""
    shown = rich_table.Table(title=escape(table.title), box=SIMPLE_HEAD)
    for column, is_text in zip(table.columns, text_columns(table), strict=True):
        shown.add_column(escape(column), justify="left" if is_text else "right")
    for row in table.rows:
        shown.add_row(*(escape(plain(entry)) for entry in row))
    return shown


def to_values(table: Table) -> dict[str, Any]:
    """Return the table as JSON values: its title, its rows by column and its notes."""
    rows = [dict(zip(table.columns, map(_json_value, row), strict=True)) for row in table.rows]
    return {"title": table.title, "rows": rows, "notes": list(table.notes)}


def _json_value(entry: Entry) -> str | float | Mapping[str, Any] | None:
    """Return an entry; one with several fields as a mapping."""
    return asdict(entry) if is_dataclass(entry) else entry


def to_csv(table: Table) -> str:
    """Return the table as CSV: every number in full, each field of an entry in a column of its own."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([csv_columns(table), *csv_rows(table)])
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
}


def _fields_of(column: Sequence[Entry]) -> Sequence[str]:
    """Return the CSV columns that a column's entries need; one without a name for plain entries."""
    found = {type(entry) for entry in column} & _FIELDS.keys()
    return next((_FIELDS[kind] for kind in found), ("",))


def _csv_value(entry: Entry, field: str) -> str | int | float:
    value: Any = getattr(entry, field) if isinstance(entry, MeanStd | Interval) else entry
    if isinstance(value, Rounded | Cited):
        value = value.value if isinstance(value, Rounded) else value.text
    return "" if value is None else int(value) if isinstance(value, bool) else value


def to_markdown(table: Table) -> str:
    """Return the table in Markdown, with its title and notes."""
    rule = ["---" if is_text else "--:" for is_text in text_columns(table)]
    rows = [[plain(entry).replace("|", "\\|") for entry in row] for row in (table.columns, *table.rows)]
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])]
    return "\n".join([f"**{table.title}**", "", *lines, *(f"\n{note}" for note in table.notes)]) + "\n"


def to_html(table: Table) -> str:
    """Return the table for a notebook, without colors of its own: light and dark themes have theirs."""
    sides = ["left" if is_text else "right" for is_text in text_columns(table)]

    def line(entries: Sequence[Entry], tag: str) -> str:
        cells = zip(map(plain, entries), sides, strict=True)
        return "".join(
            f'<{tag} style="text-align: {side}; padding: 0.1em 0.6em">{html.escape(text)}</{tag}>' for text, side in cells
        )

    rows = "".join(f"<tr>{line(row, 'td')}</tr>" for row in table.rows)
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
    return (
        f'<table><caption style="text-align: left">{html.escape(table.title)}</caption>'
        f"<thead><tr>{line(table.columns, 'th')}</tr></thead><tbody>{rows}</tbody></table>"
        + (f"<details><summary>Notes</summary>{notes}</details>" if notes else "")
    )


def to_latex(table: Table) -> str:
    """Return the table in LaTeX, for the package booktabs."""
    alignment = "".join("l" if is_text else "r" for is_text in text_columns(table))
    lines = [" & ".join(map(_latex, row)) + r" \\" for row in table.rows]
    notes = [r"\par\smallskip\footnotesize " + _escaped(note) for note in table.notes]
    return "\n".join([
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escaped(table.title)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        " & ".join(map(_escaped, table.columns)) + r" \\",
        r"\midrule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}",
        *notes,
        r"\end{table}",
        "",
    ])  # fmt: skip


def _latex(entry: Entry) -> str:
    match entry:
        case None:
            return "--"
        case str():
            return _escaped(entry)
        case Cited(text, paper):
            return _escaped(text) + (rf"~\cite{{{paper}}}" if paper else "")
        case MeanStd(mean, std, is_best):
            inner = _number(mean) + ("" if std is None else rf" \pm {_number(std)}")
            return rf"$\mathbf{{{inner}}}$" if is_best else f"${inner}$"
        case Interval(value, low, high):
            around = "" if low is None or high is None else f" $[{low:+.4f}, {high:+.4f}]$"
            return f"${value:+.4f}${around}"
        case Rounded(value):
            return f"${value:.1f}$"
    return f"${_number(entry)}$".replace(",", "{,}")


_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _escaped(text: str) -> str:
    r"""Return a text with the characters escaped that are special in LaTeX.

    >>> print(_escaped("95 %"))
    95 \%
    """
    return "".join(_SPECIAL.get(character, character) for character in text)


def text_columns(table: Table) -> list[bool]:
    """Return which columns hold text, the first one always; all others hold numbers."""
    columns = [[row[place] for row in table.rows] for place in range(len(table.columns))]
    return [
        not place or all(isinstance(e, str | Cited) for e in column) for place, column in enumerate(columns)
    ]


def plain(entry: Entry) -> str:
    """Return an entry as plain text."""
    match entry:
        case None:
            return "-"
        case str():
            return entry
        case Cited(text):
            return text
        case MeanStd(mean, std, is_best):
            deviation = "" if std is None else f" ± {_number(std)}"
            return f"{_number(mean)}{deviation}{' *' if is_best else ''}"
        case Interval(value, low, high):
            around = "" if low is None or high is None else f" [{low:+.4f}, {high:+.4f}]"
            return f"{value:+.4f}{around}"
        case Rounded(value):
            return f"{value:,.1f}"
    return _number(entry)


def _number(value: float) -> str:
    """Return an integer in full, another number with four decimals or, if large, four digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"
