"""The result of a comparison in a sentence: the best model beside the round-matched reference."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from partita.report.comparison.standings import Standing, Standings
from partita.report.differences import UNCLEAR, Difference, counted
from partita.studies.results import Results, listed
from partita.studies.statistics import count_helped


@dataclass(frozen=True)
class ComparisonAnswer:
    """Says which model is best, and whether it clearly differs from training on without a personal part."""

    standings: Standings

    @property
    def _results(self) -> Results:
        return self.standings.data.results

    @property
    def _best(self) -> Standing:
        return self.standings.complete[0]

    def sentence(self) -> str:
        """Return the result, after what makes it worthless."""
        count = len(self._results.failures)
        failed = "1 failure is" if count == 1 else f"{count} failures are"
        missing = f" {failed} listed below every table, and not compared." if count else ""
        diverged = f"{listed(cells)} diverged. " if (cells := self._results.diverged) else ""
        return f"{diverged}{self._first()}{missing}"

    def _first(self) -> str:
        best, reference = self._best, self.standings.of_reference
        subject = f"Training alone ({best.title})" if best.trains_alone else best.title
        lowest = "" if self._results.direction == "up" else " (lowest)"
        start = (
            f"{subject} has the best{lowest} {self._results.split} {self._results.metric} of "
            f"{counted(len(self.standings.complete), 'model')}, {best.mean:.4f}"
        )
        if reference is best:
            return f"{start}: no other model is better."
        if reference is None or best.difference is None:
            return f"{start}, over {counted(len(self._results.outcomes[best.variant]), 'seed')}."
        return f"{start}: {best.difference.compared_with(_with_rounds(reference, best))}."

    def details(self) -> Iterator[str]:
        """Yield sentences on the devices, on the next best model, and on what an interval covers."""
        best, reference = self._best, self.standings.of_reference
        if reference is best:
            others = [one for one in self.standings.complete if one.difference]
            compared = others[0] if others else None
        else:
            compared = best
        found = compared.difference if compared else None
        if compared is None or reference is None or found is None:
            return
        if reference is best:
            yield f"Next is {compared.title}, {compared.mean:.4f}: {found.compared_with(best.title)}."
        else:
            yield self._devices(best, reference, found)
            yield from self._about_as_good()
        if best.trains_alone:
            yield from self._best_federated()
        if found.seeds == 1 and found.low is not None:
            yield "Over 1 seed, an interval covers other devices, not other seeds, which may differ by more."

    def _about_as_good(self) -> Iterator[str]:
        """Yield the models that do not clearly differ from the best one, the reference aside."""
        found = {
            one.title: self.standings.between(self._best.variant, one.variant)
            for one in self.standings.complete
            if one not in (self._best, self.standings.of_reference)
        }
        titles = [title for title, own in found.items() if own and own.verdict == UNCLEAR]
        if titles:
            yield f"Not clearly different from {self._best.title}: {listed(titles)}."

    def _best_federated(self) -> Iterator[str]:
        others = [one for one in self.standings.complete if not one.trains_alone]
        found = self.standings.between(self._best.variant, others[0].variant) if others else None
        if found:
            name = f"{others[0].title}, the best model with federation"
            yield f"{self._best.title}: {found.compared_with(name)}."

    def _devices(self, best: Standing, reference: Standing, difference: Difference) -> str:
        """Return how many devices are better and worse off than under the reference, per seed."""
        own, other = (self._results.outcomes[one.variant] for one in (best, reference))
        counts = [
            count_helped(own[seed].last, other[seed].last, self._results.direction)
            for seed in own
            if seed in other
        ]
        better, worse = (statistics.fmean(getattr(c, name) for c in counts) for name in ("helped", "hurt"))
        per_seed = ", averaged over seeds" if difference.seeds > 1 else ""
        return (
            f"Compared with {reference.title}, {_mean_text(better)} of "
            f"{counted(difference.devices, 'device')} are better off and {_mean_text(worse)} worse "
            f"off{per_seed}."
        )


def _with_rounds(reference: Standing, best: Standing) -> str:
    """Return the reference with its number of rounds beside those of the best model."""
    if best.trains_alone:
        return reference.title
    if reference.rounds == best.rounds:
        return f"{reference.title}, after the same {counted(best.rounds, 'round')}"
    rounds = f"{counted(reference.rounds, 'round')} instead of {best.rounds:,}"
    return f"{reference.title}, which trained for {rounds}"


def _mean_text(count: float) -> str:
    """Return a mean of counts without a trailing zero.

    >>> _mean_text(38.0), _mean_text(1234.33)
    ('38', '1,234.3')
    """
    return f"{count:,.1f}".removesuffix(".0")
