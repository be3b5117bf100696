"""The data of curves: every metric by rounds and by bytes; in a comparison, means and ranges over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from partita.progress.display import ACTIVITIES
from partita.protocol import DeviceId, Stage
from partita.report.comparison.data import ComparisonData
from partita.report.figures import Datum
from partita.runs.curves import CurvePoint, curve_of, has_curve, metrics_of, sample_of
from partita.runs.folder import RunFolder
from partita.studies.results import Results, Variant

_MARGIN = 0.06
"""The margin above and below the values that are drawn, as a share of their range."""
_GAP = 0.08
"""The distance of two labels at least, as a share of the height of a chart."""


@dataclass(frozen=True)
class RunCurves:
    """The curves of one run."""

    run: RunFolder

    @cached_property
    def is_drawn(self) -> bool:
        """Whether the run was evaluated during training."""
        return has_curve(self.run)

    @cached_property
    def metrics(self) -> list[str]:
        """The names of the metrics, the headline metric first."""
        return metrics_of(self.run) if self.is_drawn else []

    @property
    def devices(self) -> int:
        """Number of devices in the sample."""
        return len(sample_of(self.run))

    @cached_property
    def points(self) -> list[Datum]:
        """One datum for each metric and evaluation."""
        return [
            {
                "model": ACTIVITIES[Stage(point.stage)],
                "metric": metric,
                "is_shown": True,
                "is_trained": point.stage != Stage.FINETUNED,
                "round": point.round,
                "megabytes": point.sent / 1e6,
                "mean": point.mean,
            }
            for metric in self.metrics
            for point in curve_of(self.run, metric)
        ]


@dataclass(frozen=True, kw_only=True)
class SeedCurve:
    """The curve of one seed's run, and the training that the run continues."""

    points: Sequence[CurvePoint]
    rounds: int = 0
    """Rounds of the training that it continues."""
    sent: int = 0
    """Bytes of the training that it continues."""


@dataclass(frozen=True)
class ComparisonCurves:
    """The curves of a comparison: one for each variant that was evaluated during training."""

    data: ComparisonData
    shown: Sequence[Variant]
    """The variants in color."""

    @property
    def _results(self) -> Results:
        return self.data.results

    @cached_property
    def samples(self) -> Mapping[int, frozenset[DeviceId]]:
        """The devices of the curves, by seed: the same for all variants."""
        found: dict[int, frozenset[DeviceId]] = {}
        for runs in self._results.runs.values():
            for seed, run in runs.items():
                if seed not in found and has_curve(run):
                    found[seed] = sample_of(run)
        return found

    @cached_property
    def metrics(self) -> list[str]:
        """The names of the metrics, the headline metric first."""
        runs = (run for runs in self._results.runs.values() for run in runs.values())
        return list(dict.fromkeys(name for run in runs for name in metrics_of(run))) if self.samples else []

    @cached_property
    def points(self) -> list[Datum]:
        """One datum for each variant, metric and evaluation: the mean and the range over seeds."""
        return [
            {"model": self.data.name(variant), "metric": metric, "is_shown": variant in self.shown, **point}
            for variant in self._drawn
            for metric in self.metrics
            for point in over_seeds(self._curves(variant, metric))
        ]

    @property
    def is_ragged(self) -> bool:
        """Whether any variant has evaluations that not all of its seeds have, which are not drawn."""
        ragged = (
            {frozenset(places_of(curve.points)) for curve in self._curves(variant, self.metrics[0])}
            for variant in self._drawn
        )
        return any(len(places) > 1 for places in ragged)

    @property
    def _drawn(self) -> list[Variant]:
        """The variants that have a line."""
        drawn = (*self.data.drawn, self.data.reference, *self.shown)
        return [variant for variant in self._results.outcomes if variant in drawn]

    def _curves(self, variant: Variant, metric: str) -> list[SeedCurve]:
        """Return the curves of a variant, one for each seed."""
        curves: list[SeedCurve] = []
        for seed in self._results.outcomes[variant]:
            before = [
                self._results.outcomes.get(each, {}).get(seed) for each in self._results.before(variant)
            ]
            known = [outcome for outcome in before if outcome is not None]
            if seed in self.samples and len(known) == len(before):
                own = curve_of(
                    self._results.runs[variant][seed].reopened(), metric, sample=self.samples[seed]
                )
                rounds, sent = sum(each.rounds for each in known), sum(each.sent for each in known)
                curves.append(SeedCurve(points=own, rounds=rounds, sent=sent))
        return curves


Place = tuple[str, int | None]
"""A stage, and a round in it; None at its end."""


def places_of(curve: Sequence[CurvePoint]) -> dict[Place, CurvePoint]:
    """Return the evaluations of a run by stage and by the round in the stage.

    Early stopping ends a stage after another round with each seed: the same place of two curves is the same
    number of rounds after the stage began, and the end of a stage, where the model of the best round replaces
    that of the last, is one place.
    """
    found: dict[Place, CurvePoint] = {}
    start = 0
    for stage, group in groupby(curve, key=lambda point: point.stage):
        *during, end = group
        found |= {(stage, point.round - start): point for point in during if point.round < end.round}
        found[stage, None] = end
        start = end.round
    return found


def over_seeds(curves: Sequence[SeedCurve]) -> list[Datum]:
    """Return the mean of each evaluation that all curves have, with the lowest and the highest.

    A model before any training, which no method begins from in particular, is left out.
    """
    placed = [places_of(curve.points) for curve in curves]
    common = [place for place in (placed[0] if placed else {}) if all(place in own for own in placed)]
    found: list[Datum] = []
    for place in common:
        points = [own[place] for own in placed]
        rounds = statistics.fmean(p.round + curve.rounds for p, curve in zip(points, curves, strict=True))
        sent = statistics.fmean(p.sent + curve.sent for p, curve in zip(points, curves, strict=True))
        means = [point.mean for point in points]
        if rounds or place[0] != Stage.PRETRAINED:
            found.append(
                {
                    "is_trained": place[0] != Stage.FINETUNED,
                    "round": rounds,
                    "megabytes": sent / 1e6,
                    "mean": statistics.fmean(means),
                    "low": min(means),
                    "high": max(means),
                    "seeds": len(points),
                }
            )
    return found


def domains_of(points: Sequence[Datum], *, is_late: bool = False) -> dict[str, tuple[float, float]]:
    """Return the range of values that is drawn for each metric.

    Args:
        points: the data of the curves.
        is_late: whether only the second half of training and fine-tuned models count; the first rounds are
            often so much worse that they would hide how methods differ.
    """
    middle = max((datum["round"] for datum in points), default=0) / 2 if is_late else 0
    found: dict[str, tuple[float, float]] = {}
    for metric in dict.fromkeys(datum["metric"] for datum in points):
        own = [datum for datum in points if datum["metric"] == metric]
        late = [datum for datum in own if datum["round"] >= middle or not datum["is_trained"]] or own
        low = min(datum.get("low", datum["mean"]) for datum in late)
        high = max(datum.get("high", datum["mean"]) for datum in late)
        margin = _MARGIN * (high - low) or _MARGIN * abs(high) or _MARGIN
        found[metric] = low - margin, high + margin
    return found


def labels_of(points: Sequence[Datum], domains: Mapping[str, tuple[float, float]]) -> list[Datum]:
    """Return the label of each line in color for each metric: as high as its end, and clear of others."""
    found: list[Datum] = []
    for metric, (low, high) in domains.items():
        ends = {datum["model"]: datum for datum in points if datum["metric"] == metric and datum["is_shown"]}
        gap, below = _GAP * (high - low), -math.inf
        wanted = sorted((max(low, min(high, end["mean"])), model) for model, end in ends.items())
        places: list[float] = []
        for height, _ in wanted:
            below = max(height, below + gap)
            places.append(below)
        # Labels pushed beyond the top come down again, and push those below them.
        above = high + gap
        for at in reversed(range(len(places))):
            above = places[at] = min(places[at], above - gap)
        found += [
            {"model": model, "metric": metric, "at": at}
            for (_, model), at in zip(wanted, places, strict=True)
        ]
    return found
