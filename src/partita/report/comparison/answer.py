"""The result of a comparison in a sentence: the best model beside the round-matched reference."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.report.comparison.standings import Standings
from partita.report.comparison.unseen import UnseenAnswer
from partita.report.differences import UNCLEAR, counted, mean_text
from partita.report.tables.models import ComparedModel, missing_notes
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
    def _best(self) -> ComparedModel:
        return self.standings.ranked[0]

    @property
    def _others(self) -> list[ComparedModel]:
        """The ranked models besides the best one and the reference, the best first."""
        return [one for one in self.standings.ranked if one not in (self._best, self.standings.reference)]

    def sentence(self) -> str:
        """Return the result, after what makes it worthless."""
        count = len(self._results.failures) - len(self._results.unfinished)
        failed = "1 failure is" if count == 1 else f"{count} failures are"
        missing = f" {failed} listed below every table, and not compared." if count else ""
        diverged = f"{listed(cells)} diverged. " if (cells := self._results.diverged) else ""
        return f"{diverged}{self._first()}{missing}"

    def _first(self) -> str:
        best, reference, ranked = self._best, self.standings.reference, self.standings.ranked
        subject = f"Training alone ({best.name})" if best.trains_alone else best.name
        lowest = "" if self._results.direction == "up" else " (lowest)"
        start = (
            f"{subject} has the best{lowest} {self._results.split} {self._results.metric} of "
            f"{counted(len(ranked), 'model')}, {best.mean:.4f}"
        )
        found = self.standings.difference(best)
        if reference is best:
            other = "other model" if len(ranked) == len(self.standings.all) else "other of these"
            return f"{start}: no {other} is better."
        if reference is None or found is None:
            return f"{start}, over {counted(len(best.by_seed), 'seed')}."
        return f"{start}: {found.compared_with(_with_rounds(reference, best))}."

    def details(self) -> Iterator[str]:
        """Yield what is missing, then sentences on devices, on the rival, and on devices not seen before."""
        yield from self._results.unfinished
        yield from missing_notes(self.standings.all, self.standings.ranking)
        yield from self._better_unranked()
        if self._best is self.standings.reference:
            yield from self._next()
        else:
            yield from self._devices()
            yield from self._rivals()
        yield from UnseenAnswer(self.standings).sentences(self._best)

    def _better_unranked(self) -> Iterator[str]:
        """Yield the models that are not ranked, and better on the seeds that they have."""
        every = self.standings.all
        for one in every[: every.index(self._best)]:
            yield f"{one.name} is better on the seeds that it has, {one.mean:.4f}."

    def _next(self) -> Iterator[str]:
        """Yield the best of the others where the reference is best."""
        for other in self._others[:1]:
            if found := self.standings.difference(other):
                yield f"Next is {other.name}, {other.mean:.4f}: {found.compared_with(self._best.name)}."

    def _devices(self) -> Iterator[str]:
        """Yield how many devices are better and worse off than under the reference, per seed."""
        reference = self.standings.reference
        if reference is None:
            return
        own, other = self._best.by_seed, reference.by_seed
        counts = [
            count_helped(own[seed], other[seed], self._results.direction) for seed in own if seed in other
        ]
        if not counts:
            return
        better, worse = (statistics.fmean(getattr(c, name) for c in counts) for name in ("helped", "hurt"))
        every = statistics.fmean(c.helped + c.hurt + c.same for c in counts)
        averaged = ", averaged over seeds" if len(counts) > 1 else ""
        yield (
            f"Compared with {reference.name}, {mean_text(better)} of {mean_text(every)} devices are better "
            f"off and {mean_text(worse)} worse off{averaged}."
        )

    def _rivals(self) -> Iterator[str]:
        """Yield the model to compare the best one with on equal terms, and all that are about as good."""
        rival = self._rival
        found = rival and self.standings.between(self._best, rival)
        if rival and found:
            words = found.said_of(self._best.name)
            yield f"{_on_equal_terms(rival, self._best)} has {rival.mean:.4f}: {words}."
        names = [one.name for one in self._unclear if one is not rival]
        if names:
            also = "Also not" if rival in self._unclear else "Not"
            yield f"{also} clearly different from {self._best.name}: {listed(names)}."

    @cached_property
    def _unclear(self) -> Sequence[ComparedModel]:
        """The other models that do not clearly differ from the best one."""
        found = [(one, self.standings.between(self._best, one)) for one in self._others]
        return [one for one, own in found if own and own.verdict == UNCLEAR]

    @property
    def _rival(self) -> ComparedModel | None:
        """The best model with federation, if training alone is best; else the best that has had the same.

        That is one that continues the reference; without any, one that does not clearly differ.
        """
        if self._best.trains_alone:
            federated = [one for one in self.standings.ranked if not one.trains_alone][:1]
            return next((one for one in federated if one is not self.standings.reference), None)
        continued = [one for one in self._others if one.variant in self._results.begin_continued]
        return next(iter([*continued, *self._unclear]), None)


def _on_equal_terms(rival: ComparedModel, best: ComparedModel) -> str:
    """Return the rival with what it has in common with the best model."""
    if best.trains_alone:
        return f"{rival.name}, the best model with federation,"
    rounds = "as many rounds" if rival.rounds == best.rounds else counted(rival.rounds, "round")
    finetuned = " and a final fine-tuning too" if rival.is_finetuned and best.is_finetuned else ""
    return f"{rival.name}, with {rounds}{finetuned},"


def _with_rounds(reference: ComparedModel, best: ComparedModel) -> str:
    """Return the reference with its number of rounds beside those of the best model."""
    if best.trains_alone:
        return reference.name
    if reference.rounds == best.rounds:
        return f"{reference.name}, after the same {counted(best.rounds, 'round')}"
    rounds = f"{counted(reference.rounds, 'round')} instead of {best.rounds:,}"
    return f"{reference.name}, which trained for {rounds}"
