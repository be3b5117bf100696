"""Sections with the metric of every model of a comparison against what it costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from partita.report.charts.tradeoffs import Tradeoff, tradeoff
from partita.report.comparison.colors import legend_of
from partita.report.comparison.standings import Standings
from partita.report.differences import counted
from partita.report.figures import Datum
from partita.report.forest_section import near_range
from partita.report.page import Section
from partita.report.tables.commands import bytes_text

_CHEAPER = 0.9
"""A model that costs at most this share of the best one's is clearly cheaper."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A cost of a model."""

    column: str
    """Its name in the data of the models."""
    chart: str
    """The name of the chart's files."""
    title: str
    """The end of the section's title."""
    axis: str
    explanation: str
    """The sentence that explains it."""
    missing: str
    """The sentence that replaces the chart if no model has any."""

    amount: Callable[[float], str]
    """The cost in words."""

    def of(self, point: Datum) -> str:
        """Return the cost of a model in words."""
        return self.amount(point[self.column])


TRAFFIC = Cost(
    column="megabytes",
    chart="bytes",
    title="by traffic",
    axis="MB up and down in all training",
    explanation="MB up and down are those of all devices in all training, including pretraining",
    missing="No model has sent anything.",
    amount=lambda megabytes: bytes_text(round(megabytes * 1e6)),
)
PARAMETERS = Cost(
    column="personal",
    chart="parameters",
    title="by personal parameters",
    axis="personal parameters of a device",
    explanation="Personal parameters are the values that a device keeps after the last stage, at most",
    missing="No model has personal parameters.",
    amount=lambda values: counted(round(values), "personal parameter"),
)


def tradeoff_section(standings: Standings, cost: Cost, metric: str) -> Section:
    """Return the chart of all models by a cost, without those that would hide the others.

    The reference is always drawn. The Pareto front is that of all models.
    """
    every, line = standings.points, standings.line
    means, direction = [point["point"] for point in every], standings.data.results.direction
    low, high = near_range(means, direction, kept=[line.mean] if line else [])
    points = [point for point in every if low <= point["point"] <= high]
    title = f"{metric[:1].upper()}{metric[1:]} {cost.title}"
    if not any(point[cost.column] for point in points):
        return Section(title=title, paragraphs=[cost.missing])
    front = sorted((p for p in every if p[f"{cost.column}_front"]), key=lambda point: point[cost.column])
    content = Tradeoff(
        name=cost.chart,
        title=title,
        caption=f"Every model's mean {metric}. {cost.explanation}. {_front_text(front, cost)}",
        cost=cost.column,
        points=points,
        axes=(cost.axis, metric),
        legend=legend_of(standings),
    )
    if any(point["model"] not in content.named for point in points):
        unnamed = "Gray points without a name are the other models: point at one to see its name."
        content = replace(content, caption=f"{content.caption} {unnamed}")
    if content.axis.apart:
        content = replace(
            content, caption=f"{content.caption} Left of the dotted line, costs are not to scale."
        )
    others = [f"{point['model']}: {point['point']:.4f}" for point in every if point not in points]
    omitted = [f"Not drawn, far from the others: {'; '.join(others)}."] if others else []
    return Section(title=title, finding=_finding(front, cost), paragraphs=omitted, chart=tradeoff(content))


def _front_text(front: Sequence[Datum], cost: Cost) -> str:
    """Return the models on the Pareto front with their costs."""
    models = ", ".join(f"{point['model']} ({cost.of(point)})" for point in front)
    return (
        f"The line is the Pareto front, the models that no other beats at the same or a lower cost: {models}."
    )


def _finding(front: Sequence[Datum], cost: Cost) -> str:
    """Return the best model, and the next one on the front that is clearly cheaper."""
    best = front[-1]
    cheaper = [point for point in front[:-1] if point[cost.column] <= _CHEAPER * best[cost.column]]
    start = f"The best, {best['model']}, has {best['point']:.4f} at {cost.of(best)}"
    if not cheaper:
        return f"{start}, and no model on the front costs clearly less"
    less = abs(best["point"] - cheaper[-1]["point"])
    return f"{start}; {cheaper[-1]['model']} is {less:.4f} behind at {cost.of(cheaper[-1])}"
