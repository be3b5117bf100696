"""The result of a comparison on the devices that training has not seen."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from partita.report.comparison.standings import Standings
from partita.report.differences import UNCLEAR, UNKNOWN, MetricsBySeed, counted, difference, mean_over_seeds
from partita.report.ranking import Ranking
from partita.report.tables.models import ComparedModel, last_unseen


@dataclass(frozen=True)
class UnseenAnswer:
    """Says which model is best on unseen devices, and how another one does there."""

    standings: Standings

    @cached_property
    def _metrics(self) -> list[tuple[ComparedModel, MetricsBySeed]]:
        """The models that were evaluated on unseen devices."""
        found = [(model, last_unseen(model.runs)) for model in self.standings.all]
        return [(model, unseen) for model, unseen in found if unseen]

    @cached_property
    def _ranked(self) -> list[tuple[ComparedModel, MetricsBySeed]]:
        """Those that can be ranked there, the best first."""
        reference = [unseen for model, unseen in self._metrics if model is self.standings.reference]
        every = [unseen for _, unseen in self._metrics]
        ranking = Ranking(every, self.standings.data.results.direction, reference[0] if reference else {})
        others = [every[place] for place in ranking.order if ranking.is_ranked(every[place])]
        ordered = [ranking.best, *(unseen for unseen in others if unseen is not ranking.best)]
        return [each for unseen in ordered for each in self._metrics if each[1] is unseen]

    def finding(self) -> str:
        """Return the best model on unseen devices and how far ahead it is, empty if all devices are seen."""
        if not self._metrics:
            return ""
        (model, unseen), *others = self._ranked
        count = counted(max(map(len, unseen.values())), "unseen device")
        best = f"The best on {count} is {model.name}, {mean_over_seeds(unseen):.4f}"
        for other, own in others[:1]:
            found = difference(unseen, own, self.standings.data.results.direction)
            if found and (found.verdict in (UNCLEAR, UNKNOWN) or not found.value):
                return f"{best}: no clear difference from the next, {other.name}"
        return best

    def sentences(self, best: ComparedModel) -> Iterator[str]:
        """Yield how the best model on seen devices does on unseen ones, and which is best there."""
        own = next((unseen for model, unseen in self._metrics if model is best), None)
        if own is None:
            return
        devices = {device for values in own.values() for device in values}
        examples = self.standings.data.unseen_examples(devices)
        split = self.standings.data.results.split
        on = f"On the {counted(len(devices), 'unseen device')} ({counted(examples, f'{split} example')})"
        model, unseen = self._ranked[0]
        found = difference(unseen, own, self.standings.data.results.direction)
        if model is best or found is None:
            yield f"{on} {best.name} is the best too, {mean_over_seeds(own):.4f}."
            return
        yield (
            f"{on} {best.name} has {mean_over_seeds(own):.4f}. {model.name} is the best there, "
            f"{mean_over_seeds(unseen):.4f}: {found.said_of('it')}."
        )
