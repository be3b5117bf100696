"""Models of several runs and comparisons, ranked on the devices and seeds that all of these have."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from partita.protocol import DeviceId
from partita.report.differences import Difference, MetricsBySeed, counted, difference, mean_over_seeds
from partita.report.side_by_side.comparable import differing_data
from partita.report.side_by_side.sources import Source, SourceModel

_NOISE = 1e-12
"""A smaller difference is one of rounding: it has no sign."""


@dataclass(frozen=True, kw_only=True)
class RankedModel:
    """A model on the devices and seeds that all sources with the same data have."""

    source: Source
    model: SourceModel
    by_seed: MetricsBySeed
    """Its metrics on these devices and seeds; of other data, all of its own."""
    has_all: bool
    """Whether it has a metric on all of them."""
    gain: Difference | None
    """The paired difference from the reference on all of them; None if one of the two does not have all."""

    @property
    def name(self) -> str:
        """The model's name, with that of its source."""
        return f"{self.source.name}: {self.model.name}"

    @property
    def mean(self) -> float:
        """The weighted mean over devices, averaged over seeds."""
        return mean_over_seeds(self.by_seed)


@dataclass(frozen=True)
class RankedModels:
    """Ranks the models of sources."""

    sources: Sequence[Source]

    @cached_property
    def comparable(self) -> list[Source]:
        """The first source, and those with the same data that have devices in common with all of them."""
        found = [self.sources[0]]
        devices = found[0].devices
        for other in self.sources[1:]:
            if not differing_data(found[0], other) and devices & other.devices:
                found.append(other)
                devices &= other.devices
        return found

    @cached_property
    def devices(self) -> frozenset[DeviceId]:
        """The devices that all comparable sources have."""
        return frozenset.intersection(*(source.devices for source in self.comparable))

    @cached_property
    def seeds(self) -> frozenset[int]:
        """The seeds that all comparable sources have; if there are none, models have their own."""
        return frozenset.intersection(*(source.seeds for source in self.comparable))

    def is_comparable(self, source: Source) -> bool:
        """Return whether a source has the same data as the first."""
        return any(source is each for each in self.comparable)

    @cached_property
    def all(self) -> list[RankedModel]:
        """Every model, the best first; those that lack some of the devices or seeds, and other data, last."""
        sign = 1 if self.sources[0].direction == "up" else -1
        every = [self._ranked(source, model) for source in self.sources for model in source.models]
        return sorted(
            every, key=lambda each: (not self.is_comparable(each.source), not each.has_all, -sign * each.mean)
        )

    def _ranked(self, source: Source, model: SourceModel) -> RankedModel:
        devices = self.devices if self.is_comparable(source) else source.devices
        seeds = self.seeds if self.is_comparable(source) and self.seeds else source.seeds
        own = self._common(source, model)
        has_all = all(devices <= values.keys() for values in own.values()) and seeds <= own.keys()
        return RankedModel(
            source=source, model=model, by_seed=own, has_all=has_all, gain=self._gain(source, model, own)
        )

    def _common(self, source: Source, model: SourceModel) -> MetricsBySeed:
        """Return the metrics of a model on what all have; all of its own if it has nothing of that."""
        if not self.is_comparable(source):
            return model.by_seed
        found = {
            seed: {device: value for device, value in values.items() if device in self.devices}
            for seed, values in model.by_seed.items()
            if seed in self.seeds or not self.seeds
        }
        return {seed: values for seed, values in found.items() if values} or model.by_seed

    def _gain(self, source: Source, model: SourceModel, own: MetricsBySeed) -> Difference | None:
        """Return the paired difference, if it is over the same devices and seeds as both means."""
        first = self.sources[0]
        other = self._common(first, first.reference)
        is_same = {seed: values.keys() for seed, values in own.items()} == {
            seed: values.keys() for seed, values in other.items()
        }
        if model is first.reference or not is_same or not self.is_comparable(source):
            return None
        found = difference(own, other, first.direction)
        return replace(found, value=0.0) if found and abs(found.value) < _NOISE else found

    def common(self) -> str:
        """Return the devices and seeds that all have in words, nothing if all have the same."""
        devices = {source.devices for source in self.comparable}
        seeds = {source.seeds for source in self.comparable}
        parts = [counted(len(self.devices), "device")] if len(devices) > 1 else []
        parts += [counted(len(self.seeds), "seed")] if len(seeds) > 1 and self.seeds else []
        return " and ".join(parts)


def lacking(models: Sequence[RankedModel]) -> list[RankedModel]:
    """Return the models without some of the devices or seeds in common."""
    return [each for each in models if not each.has_all]


def best_of(models: Sequence[RankedModel]) -> list[RankedModel]:
    """Return the best of ranked models that have all devices and seeds, several if their means are equal."""
    whole = [each for each in models if each.has_all]
    return [each for each in whole if abs(each.mean - whole[0].mean) < _NOISE]
