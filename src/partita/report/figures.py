"""Charts as PNG, SVG and PDF files, drawn offline from the same definition as on the page."""

import contextlib
import copy
import json
import resource
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import vl_convert

from partita.data.cache import cache_folder
from partita.durable import replace_file
from partita.errors import RunFailed, one_line
from partita.report.charts.chart import NAMES, Chart

Datum = dict[str, Any]
"""One row of a chart's data, by field."""
Data = Mapping[str, Sequence[Datum]]
"""Data sets by name."""
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
"""Colors with enough contrast to the background, distinguishable for color-blind readers too."""
VERDICTS = {"light": ["#57606A", "#1B1F24"], "dark": ["#A3ADB8", "#E6E9EC"]}
"""Gray for models that do not clearly differ from the reference, and the color of the reference."""
_FILE_CONFIG = {"background": "white", "legend": {"orient": "bottom", "columns": 4}}
_VERSION = "6.4"
"""The version of Vega-Lite that Altair writes for."""
_SCALE = 2.0
"""PNG pixels for one pixel of the chart."""
_DESCRIPTORS = 32
"""File descriptors that must be free to draw; with fewer than 16, vl-convert panics."""


def palettes() -> dict[str, dict[str, list[str]]]:
    """Return the colors of methods (`category`) and of verdicts on them (`ordinal`), by color scheme."""
    found: dict[str, dict[str, list[str]]] = {}
    for scheme, colors in PALETTES.items():
        gray, reference = VERDICTS[scheme]
        # In the order of the verdicts: better, unclear, worse, no interval, the reference.
        found[scheme] = {"category": colors, "ordinal": [colors[0], gray, colors[1], gray, reference]}
    return found


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Turn what stops vl-convert in this block, or in a function, into a `RunFailed` of one line."""
    _check_descriptors()
    try:
        yield
    except (OSError, RunFailed):
        raise
    except BaseException as error:
        # A panic in its Rust code is no `Exception`.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = (one_line(str(error).partition("\n\n")[0]) or type(error).__name__).rstrip(".")
        raise RunFailed(f"The charts cannot be drawn: {reason}. All results are safe.") from error


def _check_descriptors() -> None:
    """Raise if this process may open too few files for vl-convert, which would panic; raise a soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 0
    needed = used + _DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise RunFailed(
                f"Charts need {_DESCRIPTORS} file descriptors, and this process may open {hard}, of which "
                f"{used} are in use. All results are safe: raise the limit with `ulimit -n 1024`, and write "
                "the report with `partita report DIR`."
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@drawing()
def write_figures(charts: Sequence[Chart], data: Data, folder: Path) -> None:
    """Write every chart as PNG, SVG and PDF, and delete other charts of an earlier report."""
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
    """Return a chart's specification with its data, in light colors."""
    spec = copy.deepcopy(dict(chart.spec))
    spec["datasets"] = {name: data[name] for name in chart.data}
    own = spec.get("config", {})
    legend = {**own.get("legend", {}), **_FILE_CONFIG["legend"]}
    spec["config"] = {**own, **_FILE_CONFIG, "legend": legend, "range": palettes()["light"]}
    return spec


@cache
@drawing()
def libraries() -> str:
    """Return the JavaScript libraries that draw charts, to be embedded: a page makes no network request.

    Bundling takes seconds, so the bundle is kept in the user's cache folder.
    """
    cached = cache_folder() / f"charts-{metadata.version('vl-convert-python')}-{_VERSION}.js"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return cached.read_text(encoding="utf-8")
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_VERSION)
    with contextlib.suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        replace_file(cached, script.encode())
    return script
