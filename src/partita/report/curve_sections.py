"""The sections with curves, of a run's page and of a comparison's, and the data sets that they need."""

from collections.abc import Sequence

from partita.report.charts import curves as curve_charts
from partita.report.charts.chart import Legend
from partita.report.charts.curves import Curves
from partita.report.comparison_data import WHOLE
from partita.report.curve_data import PRETRAINING, ComparisonCurves, RunCurves, labels_of
from partita.report.figures import Data, Datum
from partita.report.page import Section
from partita.report.sections import chart_section, counted

_MAX_LABELED = 6
"""The largest number of lines with labels at their ends; more lines have a legend."""
_MISSING = (
    "No model was evaluated during training. With evaluate.every=5, for example, the metric is measured "
    "every 5 rounds and drawn here."
)


def run_curves(curves: RunCurves) -> list[Section]:
    """Return the curves of a run, or a sentence on how to get them."""
    stages = list(dict.fromkeys(datum["model"] for datum in curves.points))
    drawn = Curves(legend=Legend(methods=stages, shown=stages), title="stage", is_chain=True)
    summary = curves.run.summary
    caption = (
        f"Weighted mean over the same {counted(curves.devices, 'device')} everywhere, by training rounds and "
        f"by MB that the run has sent so far.{_tuned(curves.points)}"
    )
    return _sections(drawn, curves.metrics, summary["split"], caption)


def comparison_curves(curves: ComparisonCurves) -> list[Section]:
    """Return the curves of a comparison, or a sentence on how to get them."""
    points, data = curves.points, curves.data
    models, shown, parts = (
        list(dict.fromkeys(d[key] for d in points)) for key in ("model", "method", "part")
    )
    has_band = any(datum["seeds"] > 1 for datum in points)
    drawn = Curves(
        legend=Legend(methods=data.methods, shown=shown),
        parts=parts if len({*parts} - {PRETRAINING, WHOLE}) > 1 else (),
        has_band=has_band,
        longest=_longest(points) if len(models) <= _MAX_LABELED else None,
    )
    sizes = sorted({len(sample) for sample in curves.samples.values()})
    devices = counted(sizes[-1], "device") if sizes else ""
    band = "; line: mean over seeds, band: lowest to highest seed" if has_band else ""
    caption = (
        f"Weighted mean over the same {devices} for all methods{band}. Methods that begin from the "
        f"pretrained model continue its line: its rounds and MB count as theirs.{_tuned(points)}"
    )
    return _sections(drawn, curves.metrics, data.results.split, caption)


def curve_data_sets(points: Sequence[Datum]) -> Data:
    """Return the data sets of the charts."""
    return {"curves": points, "labels": labels_of(points)}


def _sections(drawn: Curves, metrics: Sequence[str], split: str, caption: str) -> list[Section]:
    if not metrics:
        return [Section(title=curve_charts.TITLE, paragraphs=[_MISSING])]
    titles = {name: f"{split} {name}" for name in metrics}
    headline, *further = metrics
    sections = [chart_section(drawn.headline(headline, titles[headline], caption))]
    if further:
        sections.append(chart_section(drawn.further({name: titles[name] for name in further}, caption)))
    return sections


def _longest(points: Sequence[Datum]) -> dict[str, float]:
    return {field: max(datum[field] for datum in points) for field in ("round", "megabytes")}


def _tuned(points: Sequence[Datum]) -> str:
    """Return what a diamond means, if there is one."""
    return "" if all(datum["is_trained"] for datum in points) else " Diamonds: after the final fine-tuning."
