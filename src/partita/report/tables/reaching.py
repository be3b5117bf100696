"""The training that a method needs to reach the final metric of the reference."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.protocol import DeviceId
from partita.report.differences import counted
from partita.report.tables.entries import Reached
from partita.runs.curves import CurvePoint, curve_of, has_curve, sample_of
from partita.studies.results import Results, Variant

_Curves = dict[Variant, list[CurvePoint]]


@dataclass(frozen=True)
class Cost:
    """Training up to some point, including what it continues."""

    rounds: int
    sent: int
    """Bytes, up and down."""


@dataclass(frozen=True)
class Reaching:
    """Finds the first evaluation of each variant that is at least as good as the reference's final one."""

    results: Results

    @property
    def is_known(self) -> bool:
        """Whether the reference was evaluated during training."""
        return bool(self._curves)

    @property
    def unknown(self) -> str:
        """The reason why the training that methods need is not known; empty where it is."""
        if self.is_known:
            return ""
        title = f'"{self.results.titles[self.results.reference[0]]}"'
        if not self.results.of(*self.results.reference):
            return f"{title} has no result"
        if not self._samples:
            return f"{title} was not evaluated during training (set `evaluate.every`)"
        return f"no device that was evaluated while {title} trained has a {self.results.metric}"

    def rounds(self, variant: Variant) -> Reached | None:
        """Return the rounds of training that a variant needs, None where that is not known."""
        return _mean([cost and cost.rounds for cost in self._costs(variant)])

    def megabytes(self, variant: Variant) -> Reached | None:
        """Return the traffic of training that a variant needs, None where that is not known."""
        return _mean([cost and cost.sent / 1e6 for cost in self._costs(variant)])

    @cached_property
    def _curves(self) -> dict[int, _Curves]:
        """The curve of every variant, by seed, on the devices that the reference evaluates in training."""
        found: dict[int, _Curves] = {}
        for seed, sample in self._samples.items():
            runs = {variant: own[seed] for variant, own in self.results.runs.items() if seed in own}
            found[seed] = {variant: curve_of(run.reopened(), sample=sample) for variant, run in runs.items()}
        return {seed: curves for seed, curves in found.items() if curves[self.results.reference]}

    @cached_property
    def _samples(self) -> dict[int, frozenset[DeviceId]]:
        """The devices that the reference evaluates during training, by seed."""
        runs = self.results.runs.get(self.results.reference, {})
        known = {seed: runs[seed] for seed in self.results.of(*self.results.reference) if seed in runs}
        return {seed: sample_of(run) for seed, run in known.items() if has_curve(run)}

    @property
    def evaluated(self) -> str:
        """The devices evaluated during training, in words with their number."""
        if not self.is_known:
            return "the devices evaluated during training"
        some = max(len(self._samples[seed]) for seed in self._curves)
        every = max(len(self.results.examples(seed)) for seed in self._curves)
        if some >= every:
            return "all devices"
        return f"{some:,} of {counted(every, 'device')}, those evaluated during training"

    def _costs(self, variant: Variant) -> list[Cost | None]:
        """Return the cost for each seed with a known goal, None where the variant does not reach it."""
        return [self._cost(variant, seed) for seed in self.results.outcomes[variant] if seed in self._curves]

    def _cost(self, variant: Variant, seed: int) -> Cost | None:
        sign = 1 if self.results.direction == "up" else -1
        goal = sign * self._curves[seed][self.results.reference][-1].mean
        return next((cost for cost, mean in self._points(variant, seed) if sign * mean >= goal), None)

    def _points(self, variant: Variant, seed: int) -> Iterator[tuple[Cost, float]]:
        """Yield all evaluations of the training that a variant continues, then its own."""
        rounds = sent = 0
        for each in (*self.results.before(variant), variant):
            for point in self._curves[seed].get(each, []):
                yield Cost(rounds + point.round, sent + point.sent), point.mean
            outcome = self.results.outcomes.get(each, {}).get(seed)
            if outcome is not None:
                rounds, sent = rounds + outcome.rounds, sent + outcome.sent


def _mean(costs: Sequence[float | None]) -> Reached | None:
    """Return the mean over the seeds that reach the goal, None if there is no seed."""
    known = [cost for cost in costs if cost is not None]
    return Reached(statistics.fmean(known) if known else None, len(known), len(costs)) if costs else None
