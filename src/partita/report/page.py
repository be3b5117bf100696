"""One self-contained HTML page: an answer, interactive charts, tables and every device."""

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

from jinja2 import Environment

from partita.report.charts.chart import Chart
from partita.report.figures import Data, Datum, libraries, palettes
from partita.report.tables.entries import plain
from partita.report.tables.table import Table, text_columns, visible

_DIGITS = 8
"""Significant digits of the numbers that a page holds."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a page: a heading, paragraphs, a table and a chart."""

    title: str
    finding: str = ""
    """The result that the section shows, in a few words."""
    paragraphs: Sequence[str] = ()
    chart: Chart | None = None
    table: Table | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of a page."""

    title: str
    setup: str = ""
    """The task, the model and the number of devices, in a line below the title."""
    answer: str
    """The result in one sentence."""
    details: Sequence[str] = ()
    """Further sentences about the result."""
    sections: Sequence[Section]
    data: Data
    """The datasets of the charts; the table of devices shows `devices`."""
    metric: str
    """The name of the metric in the caption of the table of devices."""
    change: str
    """The name of a change of the metric, positive if it is an improvement."""
    split: str
    """The split that the table of devices shows."""
    listed: Sequence[str] = ()
    """The models in the table of devices, if it does not show all of them."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """How to reproduce it: commands, versions and seeds, by name."""
    config: str = ""
    """The text of the config file."""

    @property
    def charts(self) -> list[Chart]:
        """All charts."""
        return [section.chart for section in self.sections if section.chart]

    @property
    def tables(self) -> list[Table]:
        """All tables."""
        return [section.table for section in self.sections if section.table]


def html_of(page: Page) -> str:
    """Return the page as HTML."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["plain"] = plain
    template = environment.from_string(_file("page.html"))
    sections = [replace(each, table=each.table and visible(each.table)) for each in page.sections]
    return template.render(
        page=replace(page, sections=sections),
        text_columns=text_columns,
        style=_file("page.css"),
        script=_file("page.js"),
        libraries=libraries().replace("</script", "<\\/script"),
        data=packed({name: columns_of(rows) for name, rows in page.data.items()}),
        palettes=_json(palettes()),
        listed=json.dumps(page.listed),
        charts=_json({chart.name: {"wide": chart.spec, "narrow": chart.narrow} for chart in page.charts}),
    )


def packed(value: Any) -> str:
    """Return a value as compressed JSON, in base64: the data of many models and devices are several MB."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def columns_of(rows: Sequence[Datum]) -> dict[str, Any]:
    """Return a dataset by column, compactly: numbers rounded, each distinct text once."""
    names = list(rows[0]) if rows else []
    return {name: _column([row[name] for row in rows]) for name in names}


def _column(values: Sequence[Any]) -> Any:
    """Return a column; one of texts as the distinct texts and the index of each row's.

    >>> _column(["b", "a", "b"])
    {'texts': ['b', 'a'], 'indices': [0, 1, 0]}
    >>> _column([1, 123.45678901, None])
    [1, 123.45679, None]
    """
    if not values or not all(isinstance(value, str) for value in values):
        return [_rounded(value) for value in values]
    indices = {text: index for index, text in enumerate(dict.fromkeys(values))}
    return {"texts": list(indices), "indices": [indices[value] for value in values]}


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _json(value: Any) -> str:
    r"""Return JSON that is safe inside a script element.

    >>> print(_json({"</script>": 1}))
    {"\u003c/script>":1}
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _file(name: str) -> str:
    return (resources.files("partita.report") / name).read_text(encoding="utf-8")
