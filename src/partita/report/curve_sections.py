"""The sections with curves, of a run's page and of a comparison's, and the data sets that they need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partita.report.charts import curves as curve_charts
from partita.report.charts.chart import Legend
from partita.report.charts.curves import Curves
from partita.report.comparison.colors import legend_of
from partita.report.comparison.standings import Standings
from partita.report.curve_data import ComparisonCurves, RunCurves, domains_of, labels_of
from partita.report.differences import counted
from partita.report.figures import Data, Datum
from partita.report.page import Section
from partita.report.sections import chart_section
from partita.runs.folder import RunFolder

_MISSING = (
    "No model was evaluated during training. With evaluate.every=5, for example, the metric is measured "
    "every 5 rounds and drawn here."
)


@dataclass(frozen=True)
class CurveSections:
    """The sections with curves, and their data sets."""

    sections: Sequence[Section]
    data: Data


def run_curves(run: RunFolder) -> CurveSections:
    """Return the curves of a run, or a sentence on how to get them."""
    curves = RunCurves(run)
    stages = list(dict.fromkeys(datum["model"] for datum in curves.points))
    drawn = Curves(
        legend=Legend(models=stages, shown=stages),
        domains=domains_of(curves.points),
        longest=_longest(curves.points),
        is_chain=True,
    )
    caption = (
        f"Weighted mean over the same {counted(curves.devices, 'device')} everywhere, by training rounds and "
        f"by MB that the run has sent so far. {_notes(curves.points, drawn.domains)}"
    )
    return _sections(drawn, curves, run.summary["split"], caption.strip())


def comparison_curves(standings: Standings) -> CurveSections:
    """Return the curves of a comparison, or a sentence on how to get them."""
    data, legend = standings.data, legend_of(standings)
    curves = ComparisonCurves(
        data, [each for each in data.results.outcomes if data.name(each) in legend.shown]
    )
    points, has_band = curves.points, any(datum["seeds"] > 1 for datum in curves.points)
    drawn = Curves(
        legend=legend,
        domains=domains_of(points, is_late=True),
        longest=_longest(points),
        has_band=has_band,
    )
    devices = counted(max(map(len, curves.samples.values()), default=0), "device")
    band = "; line: mean over seeds, band: lowest to highest seed" if has_band else ""
    ragged = (
        " A line has the evaluations that all seeds have, at the mean of their rounds: early stopping ends "
        "training after another round with each seed."
        if points and curves.is_ragged
        else ""
    )
    others = " Thin lines: all other models." if not all(datum["is_shown"] for datum in points) else ""
    caption = (
        f"Weighted mean over the same {devices} for all models{band}. Methods that begin from the "
        f"pretrained model continue its line: its rounds and MB count as theirs.{ragged}{others} "
        f"{_notes(points, drawn.domains)}"
    )
    return _sections(drawn, curves, data.results.split, caption.strip())


def _sections(drawn: Curves, curves: RunCurves | ComparisonCurves, split: str, caption: str) -> CurveSections:
    if not curves.points:
        missing = Section(title=curve_charts.TITLE, paragraphs=[_MISSING])
        return CurveSections([missing], {})
    titles = {name: f"{split} {name}" for name in drawn.domains}
    headline, *further = titles
    sections = [chart_section(drawn.headline(headline, titles[headline], caption))]
    if further:
        sections.append(chart_section(drawn.further({name: titles[name] for name in further}, caption)))
    labels = labels_of(curves.points, drawn.domains)
    return CurveSections(sections, {"curves": curves.points, "labels": labels})


def _longest(points: Sequence[Datum]) -> dict[str, float]:
    return {field: max((datum[field] for datum in points), default=0.0) for field in ("round", "megabytes")}


def _notes(points: Sequence[Datum], domains: Mapping[str, tuple[float, float]]) -> str:
    """Return what a diamond means and that lines are cut off, where they are."""
    notes: list[str] = []
    if not all(datum["is_trained"] for datum in points):
        notes.append("Diamonds: after the final fine-tuning.")
    if any(not low <= datum["mean"] <= high for datum in points for low, high in [domains[datum["metric"]]]):
        notes.append("Early values beyond the axis are cut off.")
    return " ".join(notes)
