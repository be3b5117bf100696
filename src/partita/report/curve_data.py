"""The data of curves: every metric by rounds and by bytes; in a comparison, means and ranges over seeds."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

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


@dataclass(frozen=True)
class ComparisonCurves:
    """The curves of a comparison: one for each variant that was evaluated during training."""

    data: ComparisonData
    shown: Sequence[Variant]
    """The variants in color, of which the first is the best."""

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
            for variant in self._results.outcomes
            if variant in (*self.data.drawn, self.data.reference, *self.shown)
            for metric in self.metrics
            for point in over_seeds(self._curves(variant, metric))
        ]

    def _curves(self, variant: Variant, metric: str) -> list[list[CurvePoint]]:
        """Return the curves of a variant, one for each seed, continued from those that it continues."""
        curves: list[list[CurvePoint]] = []
        for seed in self._results.outcomes[variant]:
            before = [
                self._results.outcomes.get(each, {}).get(seed) for each in self._results.before(variant)
            ]
            known = [outcome for outcome in before if outcome is not None]
            if seed in self.samples and len(known) == len(before):
                rounds, sent = sum(each.rounds for each in known), sum(each.sent for each in known)
                own = curve_of(self._results.runs[variant][seed], metric, sample=self.samples[seed])
                curves.append([_moved(point, rounds, sent) for point in own])
        return curves


def _moved(point: CurvePoint, rounds: int, sent: int) -> CurvePoint:
    """Return a point after so many more rounds and bytes."""
    return replace(point, round=point.round + rounds, sent=point.sent + sent)


def over_seeds(curves: Iterable[Sequence[CurvePoint]]) -> list[Datum]:
    """Return the mean over curves of each evaluation, with the lowest and the highest.

    A model before any training, which no method begins from in particular, is left out.
    """
    found: dict[tuple[str, int], list[CurvePoint]] = {}
    for curve in curves:
        # After early stopping, the model of the best round replaces that of the last.
        for key, point in {(point.stage, point.round): point for point in curve}.items():
            if point.round or point.stage != Stage.PRETRAINED:
                found.setdefault(key, []).append(point)
    return [
        {
            "is_trained": stage != Stage.FINETUNED,
            "round": round,
            "megabytes": statistics.fmean(point.sent for point in points) / 1e6,
            "mean": statistics.fmean(means := [point.mean for point in points]),
            "low": min(means),
            "high": max(means),
            "seeds": len(points),
        }
        for (stage, round), points in found.items()
    ]


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
        # What was pushed beyond the top comes down again, and pushes those below it.
        above = high + gap
        for at in reversed(range(len(places))):
            above = places[at] = min(places[at], above - gap)
        found += [
            {"model": model, "metric": metric, "at": at}
            for (_, model), at in zip(wanted, places, strict=True)
        ]
    return found
