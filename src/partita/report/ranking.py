"""The order of models that may lack devices or seeds, and which of them are as good as the best one."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.report.differences import UNKNOWN, WORSE, MetricsBySeed, difference, mean_over_seeds
from partita.tasks.metrics import Direction


@dataclass(frozen=True)
class Ranking:
    """Ranks models by what they share: a mean over fewer devices or seeds may be high only for that."""

    models: Sequence[MetricsBySeed]
    direction: Direction
    reference: MetricsBySeed
    """The model that those with other devices or seeds are compared through; empty if it has no result."""

    @property
    def sign(self) -> int:
        """The factor that makes an improvement of the metric positive."""
        return 1 if self.direction == "up" else -1

    @cached_property
    def order(self) -> list[int]:
        """The places of all models in `models`, the best first."""
        return sorted(range(len(self.models)), key=lambda place: -self.sign * self._level(self.models[place]))

    @cached_property
    def best(self) -> MetricsBySeed:
        """The best model of those that can be ranked."""
        every = [self.models[place] for place in self.order]
        return next((model for model in every if self.is_ranked(model)), every[0])

    @cached_property
    def seeds(self) -> frozenset[int]:
        """The seeds that most models have: one that only a few have does not count."""
        every = {seed for model in self.models for seed in model}
        return frozenset(s for s in every if 2 * sum(s in model for model in self.models) > len(self.models))

    def is_ranked(self, model: MetricsBySeed) -> bool:
        """Return whether a model has every seed that most models have, so that it can be called the best."""
        return self.seeds <= model.keys()

    def is_as_good(self, model: MetricsBySeed) -> bool:
        """Return whether a model is the best one, or not clearly worse: one rule for all tables and texts."""
        if model is self.best:
            return True
        found = difference(model, self.best, self.direction)
        if found is None or not self.is_ranked(model):
            return False
        return found.value >= 0 if found.verdict == UNKNOWN else found.verdict != WORSE

    def _level(self, model: MetricsBySeed) -> float:
        """Return a model's mean; on other devices or seeds than the reference, what it is expected to be.

        That is the reference's mean, better by the paired difference on the devices and seeds of both.
        """
        found = difference(model, self.reference, self.direction)
        if found is None or _has_pairs_of(model, self.reference):
            return mean_over_seeds(model)
        return mean_over_seeds(self.reference) + self.sign * found.value


def _has_pairs_of(model: MetricsBySeed, other: MetricsBySeed) -> bool:
    """Return whether two models have a metric with the same seeds and, with each, on the same devices."""
    return model.keys() == other.keys() and all(
        len(values) == len(other[seed]) and all(device in other[seed] for device in values)
        for seed, values in model.items()
    )
