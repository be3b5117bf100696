"""The result of several runs and comparisons side by side, in sentences."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from partita.report.differences import counted
from partita.report.side_by_side.comparable import differing_data, other_data, unrecorded_data
from partita.report.side_by_side.ranked import RankedModel, RankedModels, best_of, lacking
from partita.report.side_by_side.sources import Source


@dataclass(frozen=True)
class SideBySideAnswer:
    """Says which model is the best, on which devices and seeds, and what is not the same."""

    ranking: RankedModels
    metric: str
    """The name of the metric, with its split."""

    def sentence(self) -> str:
        """Return the best model, after what makes sources not comparable."""
        first, *others = self.ranking.sources
        apart = [
            f"{other.name} and {first.name} have no device in common: nothing can be paired."
            for other in others
            if not self.ranking.is_comparable(other) and not differing_data(first, other)
        ]
        return " ".join([*other_data(self.ranking.sources), *apart, self._best()])

    def _best(self) -> str:
        """Return the best model of all, or of each source where the data differ."""
        sources, models = self.ranking.sources, self.ranking.all
        if len(self.ranking.comparable) < len(sources):
            own = [(source, best_of(self._of(source))) for source in sources]
            each = [
                f"{source.name}: {best[0].model.name} ({best[0].mean:.4f})"
                if best
                else f"{source.name}: none"
                for source, best in own
            ]
            return f"The best {self.metric} of each: {'; '.join(each)}."
        if not best_of(models):
            return f"No model has a {self.metric} on all devices and seeds: none is the best."
        best, count = best_of(models)[0], len(models) - len(lacking(models))
        of = (
            counted(count, "model")
            if count == len(models)
            else f"the {count} models with all devices and seeds"
        )
        common = self.ranking.common()
        over = f", over the {common} that all have" if common else ""
        answer = f"{best.name} has the best {self.metric} of {of}{over}: {best.mean:.4f}"
        return f"{answer}, {best.gain.compared_with(self._reference)}." if best.gain else f"{answer}."

    def _of(self, source: Source) -> list[RankedModel]:
        return [each for each in self.ranking.all if each.source is source]

    @property
    def _reference(self) -> str:
        first = self.ranking.sources[0]
        return f"{first.name}: {first.reference.name}"

    def details(self) -> Iterator[str]:
        """Yield other best models, the reference, what is not the same, and who lacks some of it."""
        is_one_ranking = len(self.ranking.comparable) == len(self.ranking.sources)
        if is_one_ranking and (equal := best_of(self.ranking.all)[1:]):
            yield f"As good as the best: {', '.join(each.name for each in equal)}."
        yield f"The reference is {self._reference}, {self.ranking.sources[0].reference_is}."
        yield from self._unshared("devices", len(self.ranking.devices), lambda source: source.devices)
        yield from self._unshared("seeds", len(self.ranking.seeds), lambda source: source.seeds)
        if is_one_ranking and (others := lacking(self.ranking.all)):
            yield f"Without some of these devices or seeds, so never called best: {self._names(others)}."
        yield from unrecorded_data(self.ranking.sources)

    def _names(self, models: list[RankedModel]) -> str:
        """Return the names of models, and of a source in place of all of its models."""
        names: list[str] = []
        for source in self.ranking.sources:
            own = [each.name for each in models if each.source is source]
            names += own if len(own) < len(source.models) else [f"all models of {source.name}"]
        return ", ".join(names)

    def _unshared(self, what: str, common: int, of: Callable[[Source], frozenset[object]]) -> Iterator[str]:
        """Yield a sentence about devices or seeds that sources do not have in common, if there are any."""
        found = {source.name: of(source) for source in self.ranking.comparable}
        if len(set(found.values())) == 1:
            return
        counts = ", ".join(f"{len(own):,} in {name}" for name, own in found.items())
        where = "This result and the chart are over those in common, the table over all of each"
        if not common:
            where = "Every mean is over its own, and no difference between them is paired"
        yield f"The {what} are not the same ({counts}; {common:,} in common). {where}."
