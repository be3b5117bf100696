"""The entries of every column of the table `methods`, computed from a comparison's results."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from partita.protocol import DeviceId
from partita.report.differences import MetricsBySeed, difference
from partita.report.ranking import Ranking
from partita.report.tables.entries import Cited, Entry, Interval, MeanStd, Reached, Rounded, Share
from partita.report.tables.means import marked
from partita.report.tables.models import ComparedModel, last, models_of, ranking_of, reference_of
from partita.report.tables.reaching import Reaching
from partita.studies.columns import COLUMNS
from partita.studies.results import Results, Variant
from partita.studies.statistics import count_better, count_helped, mean_of, quartiles_of, worst_percentile

FIRST = ("method", "personal part")
"""The columns that every table of methods begins with."""


@dataclass(frozen=True)
class MethodColumns:
    """Computes every column of a comparison; `studies.columns` says what each means."""

    results: Results

    @cached_property
    def models(self) -> list[ComparedModel]:
        """The models, one for each row."""
        return list(models_of(self.results))

    @cached_property
    def ranking(self) -> Ranking:
        """The ranking of the models after their last stage."""
        return ranking_of(self.models, self.results)

    @cached_property
    def reaching(self) -> Reaching:
        """The training that each model needs to reach the reference."""
        return Reaching(self.results)

    def row(self, place: int) -> list[Entry]:
        """Return the method and the personal part of a model, and its entry in every column."""
        model, entries = self.models[place], self._entries
        citation = self.results.citations[model.variant[0]]
        first = [Cited(model.title, citation.key if citation else ""), model.variant[1]]
        return [
            *first,
            *(self._means[place] if name == "metric" else entries[name](model) for name in COLUMNS),
        ]

    def headings(self, names: Iterable[str]) -> list[str]:
        """Return the headings of columns, after the method and its personal part."""
        return [*FIRST, *(self._text(COLUMNS[name].heading) for name in names)]

    def meaning(self, names: Iterable[str]) -> str:
        """Return the sentences that explain columns, each once."""
        found = dict.fromkeys(COLUMNS[name].meaning for name in names)
        return " ".join(self._text(meaning) for meaning in found if meaning)

    def _text(self, template: str) -> str:
        """Return a heading or a meaning with the names of this comparison."""
        results = self.results
        return template.format(
            metric=results.metric,
            percentile={"up": "10th", "down": "90th"}[results.direction],
            baseline=results.titles[results.baseline],
            reference=results.titles[results.reference[0]],
            evaluated=self.reaching.evaluated,
            alone=results.titles[results.alone],
        )

    @property
    def _entries(self) -> Mapping[str, Callable[[ComparedModel], Entry]]:
        """The function of every column but the metric, by name."""
        return {
            "kept": lambda model: model.kept,
            "rounds": lambda model: model.rounds,
            "mb": lambda model: Rounded(model.sent / 1e6),
            "seconds": lambda model: Rounded(model.seconds),
            "difference": self._difference,
            "rounds_to_reach": partial(self._reached, Reaching.rounds),
            "mb_to_reach": partial(self._reached, Reaching.megabytes),
            "memory": self._memory,
            "worth_joining": self._worth_joining,
            **{name: partial(self._count, name) for name in ("helped", "hurt", "same")},
            "percentile": self._percentile,
            **{f"quartile{quarter + 1}": partial(self._quartile, quarter) for quarter in range(4)},
        }

    @cached_property
    def _means(self) -> list[MeanStd]:
        return marked([model.by_seed for model in self.models], self.ranking)

    def _difference(self, model: ComparedModel) -> Interval | None:
        if model.is_last_of(self.results.baseline):
            return None
        baseline = self._baseline(model.variant)
        return Interval.of(difference(model.by_seed, baseline, self.results.direction))

    def _baseline(self, variant: Variant) -> MetricsBySeed:
        """Return the baseline with the same personal part as a variant, or its first personal part."""
        parts = self._baseline_parts
        part = variant[1] if variant[1] in parts else next(iter(parts), "")
        return last(self.results.of(self.results.baseline, part))

    @property
    def _baseline_parts(self) -> list[str]:
        return [part for method, part in self.results.outcomes if method == self.results.baseline]

    @property
    def other_part(self) -> str:
        """The sentence on models paired with another part of a baseline that has several; empty if none."""
        parts, title = self._baseline_parts, self.results.titles[self.results.baseline]
        if len(parts) < 2 or all(model.variant[1] in parts for model in self.models):
            return ""
        return (
            f"The difference from {title} is with the same personal part; for a model whose part {title} "
            f"does not have, with {parts[0]}."
        )

    def _reached(
        self, cost: Callable[[Reaching, Variant], Reached | None], model: ComparedModel
    ) -> Reached | None:
        return None if model.is_served else cost(self.reaching, model.variant)

    def _memory(self, model: ComparedModel) -> Rounded | None:
        every = [*self.results.before(model.variant), model.variant]
        runs = [run for variant in every for run in self.results.runs.get(variant, {}).values()]
        sizes = [(run.costs or {}).get("visit_bytes") for run in runs]
        return Rounded(max(known) / 1e3) if (known := [size for size in sizes if size]) else None

    def _worth_joining(self, model: ComparedModel) -> Share | None:
        others = [last(self.results.of(self.results.alone)), reference_of(self.results)]
        if model.is_last_of(self.results.alone) or model.is_last_of(self.results.reference[0]):
            return None
        shares = [
            count_better(values, [other[seed] for other in others], self.results.direction)
            for seed, values in model.by_seed.items()
            if all(seed in other for other in others)
        ]
        if not shares:
            return None
        return Share(statistics.fmean(s.count for s in shares), statistics.fmean(s.of for s in shares))

    def _count(self, name: str, model: ComparedModel) -> Rounded | None:
        reference = reference_of(self.results)
        counts = [
            getattr(count_helped(values, reference[seed], self.results.direction), name)
            for seed, values in model.by_seed.items()
            if seed in reference
        ]
        return Rounded(statistics.fmean(counts)) if counts else None

    def _percentile(self, model: ComparedModel) -> float:
        return statistics.fmean(
            worst_percentile(values, self.results.direction) for values in model.by_seed.values()
        )

    def _quartile(self, quarter: int, model: ComparedModel) -> float | None:
        means: list[float] = []
        for seed, values in model.by_seed.items():
            devices = self._quarters[seed][quarter] if self._quarters[seed] else set[DeviceId]()
            known = {device: values[device] for device in devices if device in values}
            means += [mean_of(known)] if known else []
        return statistics.fmean(means) if means else None

    @cached_property
    def _quarters(self) -> dict[int, list[set[DeviceId]]]:
        """The devices of each quarter by number of training examples, by seed."""
        seeds = {seed for runs in self.results.outcomes.values() for seed in runs}
        return {seed: quartiles_of(self.results.examples(seed)) for seed in seeds}
