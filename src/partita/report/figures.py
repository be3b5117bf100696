"""Charts as files: PNG, SVG and PDF, drawn offline from the same definition as on the page."""

import contextlib
import copy
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import vl_convert

from partita.data.cache import cache_folder
from partita.durable import replace_file
from partita.report.charts import NAMES, Chart

Data = Mapping[str, Sequence[Mapping[str, Any]]]
"""Rows by the name of the data that they are."""
PALETTES = {
    "light": [
        *("#0072B2", "#D55E00", "#009E73", "#774400", "#9977EE", "#442255", "#666666", "#1144BB", "#661111"),
        "#332288",
    ],
    "dark": [
        *("#56B4E9", "#E69F00", "#55FFAA", "#CC3344", "#BBDDFF", "#EEDD33", "#996688", "#99AA99", "#CC7700"),
        "#6655CC",
    ],
}
"""Colors that stand out from the ground, and that color-blind readers too can tell from each other."""
_ON_PAPER = {
    "range": {"category": PALETTES["light"]},
    "background": "white",
    "legend": {"orient": "bottom", "columns": 4},
}
_VERSION = "6.4"
"""Of Vega-Lite: the one that Altair writes for."""
_SCALE = 2.0
"""Pixels of a PNG to one of the chart."""


def write_figures(charts: Sequence[Chart], data: Data, folder: Path) -> None:
    """Write every chart as PNG, SVG and PDF, in the place of what an earlier page drew."""
    folder.mkdir(exist_ok=True)
    for name in NAMES - {chart.name for chart in charts}:
        for kind in ("svg", "png", "pdf"):
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
    for chart in charts:
        spec = json.dumps(with_data(chart, data))
        svg = vl_convert.vegalite_to_svg(spec, vl_version=_VERSION)
        replace_file(folder / f"{chart.name}.svg", svg.encode())
        replace_file(folder / f"{chart.name}.png", vl_convert.svg_to_png(svg, scale=_SCALE))
        replace_file(folder / f"{chart.name}.pdf", vl_convert.svg_to_pdf(svg))


def with_data(chart: Chart, data: Data) -> dict[str, Any]:
    """Return a chart with all that it draws, in light colors."""
    spec = copy.deepcopy(dict(chart.spec))
    spec["datasets"] = {name: data[name] for name in chart.data}
    spec["config"] = {**spec.get("config", {}), **_ON_PAPER}
    return spec


@cache
def libraries() -> str:
    """Return the script that draws charts on a page, whole: a page asks no network for anything.

    Putting it together takes seconds: it is kept in the user's cache folder.
    """
    place = cache_folder() / f"charts-{metadata.version('vl-convert-python')}-{_VERSION}.js"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return place.read_text()
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_VERSION)
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_file(place, script.encode())
    return script
