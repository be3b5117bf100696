"""Every model of a comparison: its mean, its difference from the reference, and what it costs."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.methods import registry
from partita.report.comparison.data import WHOLE, ComparisonData
from partita.report.differences import Difference, MetricsBySeed, difference
from partita.report.figures import Datum
from partita.report.forest_section import Line, forest_row
from partita.studies.results import CellResult, Variant
from partita.tasks.metrics import Direction

BEST = 5
"""The number of models in color in charts of devices and curves, besides the reference."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A model of a comparison beside the reference."""

    variant: Variant
    title: str
    mean: float
    """The mean of its metric over devices and seeds."""
    difference: Difference | None
    """From the reference; None for the reference itself and without a device in common."""
    rounds: int
    """Rounds of training, including those that it continues."""
    megabytes: float
    """MB up and down of all of its training."""
    personal: int
    """Largest number of values that a device keeps for its personal part."""
    is_complete: bool
    """Whether no other model has a metric on more devices and seeds."""
    trains_alone: bool
    """Whether its devices never exchange anything."""


@dataclass(frozen=True)
class Standings:
    """All models of a comparison, the best first."""

    data: ComparisonData

    @property
    def reference(self) -> Variant:
        """Training without a personal part for as many rounds; without its result, pretraining."""
        continued = registry.REFERENCE, ""
        return continued if continued in self.data.results.outcomes else self.data.reference

    @cached_property
    def all(self) -> list[Standing]:
        """Every model, the best mean first."""
        found = [self._standing(variant) for variant in self.data.results.outcomes]
        return sorted(found, key=lambda standing: -self.data.sign * standing.mean)

    @property
    def complete(self) -> list[Standing]:
        """The models that were evaluated on all devices and seeds, the best first."""
        return [standing for standing in self.all if standing.is_complete]

    @property
    def of_reference(self) -> Standing | None:
        """The reference; None if it has no result."""
        return next((one for one in self.all if one.variant == self.reference), None)

    @property
    def shown(self) -> list[Variant]:
        """The best models and the reference, the best first: as many as colors can tell apart."""
        order = [one.variant for one in self.all if one.variant in self.data.drawn]
        return [each for place, each in enumerate(order) if place < BEST or each == self.reference]

    @property
    def line(self) -> Line | None:
        """The line that the reference is in the chart of all models."""
        one = self.of_reference
        return Line(title=one.title, mean=one.mean, direction=self.data.results.direction) if one else None

    def between(self, one: Variant, other: Variant) -> Difference | None:
        """Return the difference of one model from another."""
        return difference(self._metrics(one), self._metrics(other), self.data.results.direction)

    def _metrics(self, variant: Variant) -> MetricsBySeed:
        runs = self.data.results.outcomes.get(variant, {})
        return {seed: outcome.last for seed, outcome in runs.items()}

    def _standing(self, variant: Variant) -> Standing:
        results, runs = self.data.results, self.data.results.outcomes[variant]
        costs = [self._costs(variant, seed, outcome) for seed, outcome in runs.items()]
        rounds, sent = (statistics.fmean(column) for column in zip(*costs, strict=True))
        is_personal = self.data.is_personal(variant)
        return Standing(
            variant=variant,
            title=self.data.name(variant),
            mean=self.data.mean(variant),
            difference=None if variant == self.reference else self.between(variant, self.reference),
            rounds=round(rounds),
            megabytes=sent / 1e6,
            personal=max(outcome.kept for outcome in runs.values()) if is_personal else 0,
            is_complete=_measured(runs) == max(map(_measured, results.outcomes.values())),
            trains_alone=self.data.comparison.methods[variant[0]].trains_alone,
        )

    def _costs(self, variant: Variant, seed: int, outcome: CellResult) -> tuple[int, int]:
        """Return rounds and bytes of a run, including those of the training that it continues."""
        results = self.data.results
        before = [results.outcomes.get(earlier, {}).get(seed) for earlier in results.before(variant)]
        every = [outcome, *filter(None, before)]
        return sum(o.rounds for o in every), sum(o.sent for o in every)

    @cached_property
    def points(self) -> list[Datum]:
        """One datum for each model, for the charts of models; the best first."""
        fronts = {
            cost: on_front(
                [getattr(one, cost) for one in self.all],
                [one.mean for one in self.all],
                self.data.results.direction,
            )
            for cost in ("megabytes", "personal")
        }
        return [
            {
                **forest_row(one.title, one.mean, one.difference, self.line),
                "method": self.data.results.titles[one.variant[0]],
                "part": one.variant[1] or WHOLE,
                **{cost: getattr(one, cost) for cost in fronts},
                **{f"{cost}_front": front[place] for cost, front in fronts.items()},
            }
            for place, one in enumerate(self.all)
        ]


def _measured(runs: Mapping[int, CellResult]) -> int:
    return sum(len(outcome.last) for outcome in runs.values())


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
