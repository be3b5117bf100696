"""Every model of a comparison: its mean, its difference from the reference, and what it costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.report.comparison.data import WHOLE, ComparisonData
from partita.report.differences import Difference
from partita.report.figures import Datum
from partita.report.forest_section import Line, forest_row
from partita.report.ranking import Ranking
from partita.report.tables.models import ComparedModel, ranking_of
from partita.studies.results import Variant
from partita.tasks.metrics import Direction

BEST = 5
"""The number of models in color in charts of devices and curves, besides the reference."""


@dataclass(frozen=True)
class Standings:
    """All models of a comparison, the best first."""

    data: ComparisonData

    @cached_property
    def ranking(self) -> Ranking:
        """The ranking, by what models share."""
        return ranking_of(self.data.models.values(), self.data.results)

    @cached_property
    def all(self) -> list[ComparedModel]:
        """Every model, the best first."""
        models = list(self.data.models.values())
        return [models[place] for place in self.ranking.order]

    @property
    def ranked(self) -> list[ComparedModel]:
        """The models that may be called the best, the best first: no seed that most have is missing."""
        return [model for model in self.all if self.ranking.is_ranked(model.by_seed)] or self.all

    @property
    def reference(self) -> ComparedModel | None:
        """The model that all others are compared with; None if it has no result."""
        return self.data.models.get(self.data.reference)

    @property
    def shown(self) -> list[Variant]:
        """The best models and the reference, the best first: as many as colors can tell apart."""
        variants = [*self.data.drawn, self.data.reference]
        order = [model.variant for model in self.all if model.variant in variants]
        return [each for place, each in enumerate(order) if place < BEST or each == self.data.reference]

    @property
    def line(self) -> Line | None:
        """The line that the reference is in the chart of all models."""
        one = self.reference
        return Line(title=one.name, mean=one.mean, direction=self.data.results.direction) if one else None

    def difference(self, model: ComparedModel) -> Difference | None:
        """Return the difference from the reference; None for itself and without a device in common."""
        if self.reference is None or model is self.reference:
            return None
        return self.between(model, self.reference)

    def between(self, one: ComparedModel, other: ComparedModel) -> Difference | None:
        """Return the difference of one model from another."""
        return one.difference_from(other, self.data.results.direction)

    def _costs(self, model: ComparedModel) -> dict[str, float]:
        """Return the costs of a model by their names in the charts."""
        is_personal = self.data.is_personal(model.variant)
        return {"megabytes": model.sent / 1e6, "personal": model.kept if is_personal else 0}

    @cached_property
    def points(self) -> list[Datum]:
        """One datum for each model, for the charts of models; the best first."""
        costs = [self._costs(model) for model in self.all]
        rows = [forest_row(model.name, model.mean, self.difference(model), self.line) for model in self.all]
        means = [row["point"] for row in rows]
        fronts = {
            name: on_front([own[name] for own in costs], means, self.data.results.direction)
            for name in ("megabytes", "personal")
        }
        return [
            {
                **rows[place],
                "method": model.title,
                "part": model.variant[1] or WHOLE,
                **costs[place],
                **{f"{name}_front": front[place] for name, front in fronts.items()},
            }
            for place, model in enumerate(self.all)
        ]


def on_front(costs: Sequence[float], metrics: Sequence[float], direction: Direction) -> list[bool]:
    """Return which models are on the Pareto front: no other is as cheap and as good, and better in one.

    >>> on_front([1, 2, 3, 2], [0.5, 0.9, 0.8, 0.9], "up")
    [True, True, False, True]
    """
    sign = 1 if direction == "up" else -1
    models = [(cost, -sign * metric) for cost, metric in zip(costs, metrics, strict=True)]
    return [
        not any(other != own and other[0] <= own[0] and other[1] <= own[1] for other in models)
        for own in models
    ]
