"""One self-contained page: what is said, charts that can be hovered, tables, every device; no network."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment

from partita.durable import replace_file
from partita.report.charts import Chart
from partita.report.figures import PALETTES, Data, libraries, write_figures
from partita.report.sheets import Sheet, plain, text_columns, write_sheets

_DIGITS = 5
"""Of numbers that a page holds."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page under a heading of its own."""

    title: str
    texts: Sequence[str] = ()
    chart: Chart | None = None
    sheet: Sheet | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """All that a page shows."""

    title: str
    answer: str
    """What came out, in one sentence."""
    sections: Sequence[Section]
    data: Data
    """What charts draw, and `devices`, which the table of devices is made of."""
    metric: str
    gained: str
    """What a change is called, better upwards."""
    split: str
    """The rows that the table of devices shows."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What it was made with, by name."""
    config: str = ""
    """The config, as it stands in its file."""

    @property
    def charts(self) -> list[Chart]:
        """All charts."""
        return [section.chart for section in self.sections if section.chart]

    @property
    def sheets(self) -> list[Sheet]:
        """All tables."""
        return [section.sheet for section in self.sections if section.sheet]


def write_page(page: Page, folder: Path) -> Path:
    """Write the page, its figures and its tables to a folder, and return the page's path."""
    write_figures(page.charts, page.data, folder / "figures")
    write_sheets(page.sheets, folder / "tables")
    path = folder / "report.html"
    replace_file(path, html_of(page).encode())
    return path


def html_of(page: Page) -> str:
    """Return the page as HTML."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["plain"] = plain
    template = environment.from_string(_file("page.html"))
    return template.render(
        page=page,
        text_columns=text_columns,
        style=_file("page.css"),
        script=_file("page.js"),
        libraries=libraries().replace("</script", "<\\/script"),
        data=_json({name: _columns(rows) for name, rows in page.data.items()}),
        palettes=_json(PALETTES),
        charts=_json({chart.name: dict(chart.spec) for chart in page.charts}),
    )


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return rows by column, in little room: numbers with as many digits as can be seen, each text once."""
    names = list(rows[0]) if rows else []
    return {name: _column([row[name] for row in rows]) for name in names}


def _column(values: Sequence[Any]) -> Any:
    """Return a column; one of texts as all that there are, and which of them stands where.

    >>> _column(["b", "a", "b"])
    {'texts': ['b', 'a'], 'at': [0, 1, 0]}
    >>> _column([1, 0.123456, None])
    [1, 0.12346, None]
    """
    if not values or not all(isinstance(value, str) for value in values):
        return [_short(value) for value in values]
    places = {text: place for place, text in enumerate(dict.fromkeys(values))}
    return {"texts": list(places), "at": [places[value] for value in values]}


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _json(value: Any) -> str:
    r"""Return JSON that cannot end the script element that it stands in.

    >>> print(_json({"</script>": 1}))
    {"\u003c/script>": 1}
    """
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def _file(name: str) -> str:
    return (resources.files("partita.report") / name).read_text()
