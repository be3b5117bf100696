"""Tables of numbers with their spread: for the terminal, and as CSV, Markdown and LaTeX."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from partita.durable import replace_file


@dataclass(frozen=True)
class Spread:
    """A mean over seeds, with its standard deviation where there are several."""

    mean: float
    std: float | None = None
    is_best: bool = False
    """Whether it is the best of its column, or within one standard deviation of it."""


@dataclass(frozen=True)
class Interval:
    """A number with the 95 % interval around it, where it has one."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Rounded:
    """An amount of which one digit behind the point is enough to see."""

    value: float


@dataclass(frozen=True)
class Cited:
    """A text with the paper that it comes from, if any."""

    text: str
    paper: str = ""
    """Its key in `references.bib`."""


Entry = str | int | float | Spread | Interval | Rounded | Cited | None
"""What stands in a field of a table; None where there is nothing to say."""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table."""

    name: str
    """What its files are called."""
    title: str
    columns: Sequence[str]
    """The first is of texts."""
    rows: Sequence[Sequence[Entry]]
    notes: Sequence[str] = ()
    """What there is to say below it."""


def to_terminal(sheet: Sheet) -> Table:
    """Return the table for a terminal."""
    table = Table(title=escape(sheet.title), box=SIMPLE_HEAD)
    texts = text_columns(sheet)
    for place, column in enumerate(sheet.columns):
        table.add_column(escape(column), justify="right" if place and not texts[place] else "left")
    for row in sheet.rows:
        table.add_row(*(escape(plain(entry)) for entry in row))
    return table


def to_csv(sheet: Sheet) -> str:
    """Return the table with every number in full and a column of its own for each part of an entry."""
    parts = [_parts_of([row[place] for row in sheet.rows]) for place in range(len(sheet.columns))]
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(
        [f"{column} {part}".strip() for column, own in zip(sheet.columns, parts, strict=True) for part in own]
    )
    for row in sheet.rows:
        writer.writerow([_taken(entry, part) for entry, own in zip(row, parts, strict=True) for part in own])
    return written.getvalue()


def to_markdown(sheet: Sheet) -> str:
    """Return the table in Markdown, with its title and notes."""
    texts = text_columns(sheet)
    rule = ["---" if not place or texts[place] else "--:" for place in range(len(sheet.columns))]
    rows = [[plain(entry).replace("|", "\\|") for entry in row] for row in (sheet.columns, *sheet.rows)]
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])]
    return "\n".join([f"**{sheet.title}**", "", *lines, *(f"\n{note}" for note in sheet.notes)]) + "\n"


def to_latex(sheet: Sheet) -> str:
    """Return the table in LaTeX, for the package booktabs."""
    texts = text_columns(sheet)
    places = "".join("l" if not place or texts[place] else "r" for place in range(len(sheet.columns)))
    lines = [" & ".join(map(_latex, row)) + r" \\" for row in sheet.rows]
    notes = [r"\par\smallskip\footnotesize " + _escaped(note) for note in sheet.notes]
    return "\n".join([
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escaped(sheet.title)}}}",
        rf"\label{{tab:{sheet.name}}}",
        rf"\begin{{tabular}}{{{places}}}",
        r"\toprule",
        " & ".join(map(_escaped, sheet.columns)) + r" \\",
        r"\midrule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}",
        *notes,
        r"\end{table}",
        "",
    ])  # fmt: skip


def write_sheets(sheets: Sequence[Sheet], folder: Path) -> None:
    """Write every table as CSV, Markdown and LaTeX."""
    folder.mkdir(exist_ok=True)
    forms = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
    for sheet in sheets:
        for ending, form in forms.items():
            replace_file(folder / f"{sheet.name}.{ending}", form(sheet).encode())


def text_columns(sheet: Sheet) -> list[bool]:
    """Return which columns hold texts."""
    places = range(len(sheet.columns))
    return [all(isinstance(row[place], str | Cited) for row in sheet.rows) for place in places]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"


def plain(entry: Entry) -> str:
    """Return what stands in a field as it is read."""
    match entry:
        case None:
            return "-"
        case str():
            return entry
        case Cited(text):
            return text
        case Spread(mean, std, is_best):
            spread = "" if std is None else f" ± {_number(std)}"
            return f"{_number(mean)}{spread}{' *' if is_best else ''}"
        case Interval(value, low, high):
            around = "" if low is None or high is None else f" [{low:+.4f}, {high:+.4f}]"
            return f"{value:+.4f}{around}"
        case Rounded(value):
            return f"{value:,.1f}"
    return _number(entry)


def _latex(entry: Entry) -> str:
    match entry:
        case None:
            return "--"
        case str():
            return _escaped(entry)
        case Cited(text, paper):
            return _escaped(text) + (rf"~\cite{{{paper}}}" if paper else "")
        case Spread(mean, std, is_best):
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
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def _escaped(text: str) -> str:
    r"""Return a text that LaTeX prints as it is.

    >>> print(_escaped("95 %"))
    95 \%
    """
    return "".join(_SPECIAL.get(sign, sign) for sign in text)


_PARTS: Mapping[type, Sequence[str]] = {
    Spread: ("mean", "std", "is_best"),
    Interval: ("value", "low", "high"),
}


def _parts_of(column: Sequence[Entry]) -> Sequence[str]:
    found = {type(entry) for entry in column} & _PARTS.keys()
    return next((_PARTS[kind] for kind in found), ("",))


def _taken(entry: Entry, part: str) -> str | int | float:
    value: Any = getattr(entry, part) if isinstance(entry, Spread | Interval) else entry
    if isinstance(value, Rounded | Cited):
        value = value.value if isinstance(value, Rounded) else value.text
    return "" if value is None else int(value) if isinstance(value, bool) else value
