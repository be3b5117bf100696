"""The entries of tables: numbers with what belongs to them, as plain text, in Markdown and in LaTeX."""

import math
from dataclasses import dataclass

from partita.report.differences import Difference, mean_text, signed
from partita.report.tables.escaping import citation_key, latex_text, markdown_text
from partita.shown import shown


@dataclass(frozen=True)
class MeanStd:
    """A mean over seeds, with its standard deviation if there are several."""

    mean: float
    std: float | None = None
    is_best: bool = False
    """Whether it is the best of its column, or not clearly worse."""


@dataclass(frozen=True)
class Interval:
    """A difference with its 95 % confidence interval, if it has one."""

    value: float
    low: float | None
    high: float | None
    seeds: int = 1
    """Number of seeds that it is over."""

    @classmethod
    def of(cls, found: Difference | None) -> "Interval | None":
        """Return the entry of a difference, None where there is none."""
        return found and cls(found.value, found.low, found.high, seeds=found.seeds)


@dataclass(frozen=True)
class Signed:
    """A difference without an interval, with its standard deviation over seeds if there are several."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Rounded:
    """A number displayed with one decimal, a small one with three significant digits."""

    value: float


@dataclass(frozen=True)
class Cited:
    """A text with the paper to cite for it, if any."""

    text: str
    paper: str = ""
    """The paper's key in `references.bib`."""


@dataclass(frozen=True)
class Share:
    """A number of devices out of another, both averaged over seeds."""

    count: float
    of: float


@dataclass(frozen=True)
class Reached:
    """The mean cost of reaching a goal over the seeds that reach it, None if no seed does."""

    mean: float | None
    seeds: int
    """Number of seeds that reach it."""
    of: int
    """Number of seeds."""


Entry = str | int | float | MeanStd | Interval | Signed | Rounded | Cited | Share | Reached | None
"""The content of one cell of a table; None if the cell is empty."""


def plain(entry: Entry) -> str:
    """Return an entry as plain text."""
    match entry:
        case None:
            return "-"
        case str() | Cited():
            return shown(entry if isinstance(entry, str) else entry.text)
        case MeanStd(mean, std, is_best):
            deviation = "" if std is None else f" ± {_number(std)}"
            return f"{_number(mean)}{deviation}{' *' if is_best else ''}"
        case Interval(value, low, high):
            around = "" if low is None or high is None else f" [{signed(low)}, {signed(high)}]"
            return f"{signed(value)}{around}"
        case Signed(mean, std):
            return f"{signed(mean)}{'' if std is None else f' ± {_number(std)}'}"
        case Rounded(value):
            return _rounded(value)
        case Share(count, of):
            return f"{mean_text(count)} of {mean_text(of)}"
        case Reached(mean, seeds, of):
            some = f" ({seeds} of {of} seeds)" if seeds < of else ""
            return "not reached" if mean is None else f"{_rounded(mean).removesuffix('.0')}{some}"
    return _number(entry)


def _rounded(value: float) -> str:
    """Return a number with one decimal, below 0.1 with three significant digits.

    >>> _rounded(1234.33), _rounded(0.1), _rounded(0.04149), _rounded(0.000032), _rounded(0.0)
    ('1,234.3', '0.1', '0.0415', '0.0000320', '0.0')
    """
    decimals = 2 - math.floor(math.log10(abs(value))) if 0 < abs(value) < 0.1 else 1
    return f"{value:,.{decimals}f}"


def _number(value: float) -> str:
    """Return an integer in full, another number with four decimals or, if large, four digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"


def markdown(entry: Entry) -> str:
    """Return an entry in Markdown."""
    return markdown_text(plain(entry)) if isinstance(entry, str | Cited) else plain(entry)


def latex(entry: Entry) -> str:
    """Return an entry in LaTeX."""
    match entry:
        case None:
            return "--"
        case str():
            return latex_text(entry)
        case Cited(text, paper):
            return latex_text(text) + (rf"~\cite{{{key}}}" if (key := citation_key(paper)) else "")
        case MeanStd(mean, std, is_best):
            inner = _number(mean) + ("" if std is None else rf" \pm {_number(std)}")
            return rf"$\mathbf{{{inner}}}$" if is_best else f"${inner}$"
        case Interval(value, low, high):
            around = "" if low is None or high is None else f" $[{signed(low)}, {signed(high)}]$"
            return f"${signed(value)}${around}"
        case Signed(mean, std):
            deviation = "" if std is None else rf" \pm {_number(std)}"
            return f"${signed(mean)}{deviation}$"
        case Rounded(value):
            return f"${_rounded(value).replace(',', '')}$"
        case Share() | Reached():
            return latex_text(plain(entry))
    return f"${_number(entry)}$".replace(",", "{,}")
