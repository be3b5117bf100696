"""The result of a run in a sentence: what further rounds gave, apart from what fine-tuning gave."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from partita.progress.display import ACTIVITIES
from partita.protocol import Stage
from partita.report.differences import UNCLEAR, Difference, counted, signed
from partita.report.models import EvaluatedModel
from partita.report.run.data import RunData
from partita.runs.warnings import divergence, failed_stages
from partita.studies.statistics import DeviceMetrics, count_helped, mean_of

_DIGITS = 4
"""Decimals of a metric in a sentence."""
_ROUNDS = "rounds without a personal part"
_FEW = 10
"""Fewer unseen devices than this tell little about others."""
_UNCERTAIN = " (so few devices tell little about others)"


@dataclass(frozen=True)
class RunAnswer:
    """Says how the last model of a run compares with the one that it began with."""

    data: RunData
    metric: str
    """The name of the metric, with its split."""

    def sentence(self) -> str:
        """Return the result, after what makes it worthless."""
        run = self.data.run
        worst = [*failed_stages(run), *divergence(run)]
        if Stage.PRETRAINED in run.summary.get("failed", {}):
            return _sentences(worst)
        return " ".join(filter(None, (_sentences(worst), self._result())))

    def _result(self) -> str:
        first, last = self.data.first, self.data.last
        if first is None:
            return f"The pretrained model has no {self.metric} on any device: there is nothing to compare."
        if last is not None:
            return self._comparison(first, last)
        mean, devices = first.statistics["weighted_mean"], counted(first.statistics["devices"], "device")
        prefix = "" if self.data.run.summary.get("failed") else "No personalization: "
        return f"{prefix}{first.title} has a {self.metric} of {mean:.4f} over {devices}."

    def _comparison(self, first: EvaluatedModel, last: EvaluatedModel) -> str:
        found = self.data.difference(last, first)
        if found is None:
            return f"No device has a {self.metric} for both the pretrained model and {last.title}."
        subject = f"{last.title}," if "," in last.title else last.title
        if not self.data.is_personal:
            what = "More training" if self._has_pretrained else "Training"
            subject = f"{what} without a personal part ({last.title})"
        parts = self._parts(first, last)
        further = self._beside_baseline(last) or (parts and f": {parts}")
        return (
            f"{subject} has a {self.metric} of {mean_of(self._common(last, first)[0]):.4f}, "
            f"{found.compared_with(self._beginning(first))}{further}."
        )

    @property
    def _has_pretrained(self) -> bool:
        return bool(self.data.run.values["pretrain"]["rounds"])

    def _beginning(self, first: EvaluatedModel) -> str:
        return first.title if self._has_pretrained else "the model that it began with"

    def _beside_baseline(self, last: EvaluatedModel) -> str:
        """Return how the last model compares with fine-tuning of the pretrained one; nothing without it."""
        for baseline, found in self._baseline(last):
            mean = mean_of(self._common(last, baseline)[1])
            verdict = f"{abs(found.value):.4f} {'better' if found.value > 0 else 'worse'} than"
            if not _is_clear(found):
                verdict = "not clearly better than" if round(found.value, _DIGITS) > 0 else "no better than"
            has_rounds = any(model.stage == Stage.PERSONALIZED for model in self.data.changed)
            reason = ", which needs no further rounds" if has_rounds else ""
            return f", and {verdict} {baseline.title} ({mean:.4f}){reason}"
        return ""

    def _baseline(self, last: EvaluatedModel) -> Iterator[tuple[EvaluatedModel, Difference]]:
        """Yield the baseline inside the run, if it has one, and the last model's difference from it."""
        for model in self.data.changed:
            found = self.data.difference(last, model) if model.run is not self.data.run else None
            if found:
                yield model, found

    def _common(self, *models: EvaluatedModel) -> list[DeviceMetrics]:
        """Return the metrics of models on the devices that all of them have."""
        found = [self.data.metrics_of(model) for model in models]
        shared = set(found[0]).intersection(*found[1:])
        return [{device: own[device] for device in own if device in shared} for own in found]

    def _parts(self, first: EvaluatedModel, last: EvaluatedModel) -> str:
        """Return how much of a clear difference each stage gave, on the devices that have them all."""
        found = self.data.difference(last, first)
        own = [first, *(model for model in self.data.changed if model.run is self.data.run)]
        metrics = self._common(*own)
        if found is None or not _is_clear(found) or not self.data.is_personal:
            return ""
        if len(metrics[0]) < len(self._common(first, last)[0]):
            return ""
        gains = [self.data.sign * (mean_of(after) - mean_of(before)) for before, after in pairwise(metrics)]
        ways = [self._way(model.stage) for model in own[1:]]
        if len(ways) == 1:
            return f"all of it {ways[0]}"
        parts = [f"{signed(gain)} {way}" for gain, way in zip(gains, ways, strict=True)]
        return f"{', '.join(parts[:-1])}, and {parts[-1]}"

    def _way(self, stage: Stage) -> str:
        """Return what a stage did to the model before it."""
        if stage == Stage.PERSONALIZED:
            own = [datum for datum in self.data.rounds if datum["stage"] == ACTIVITIES[stage]]
            more = "more " if self._has_pretrained else ""
            noun = f"{more}round" if len(own) == 1 else f"{more}rounds"
            has_shared = any(datum["megabytes"] for datum in own)
            return f"in {len(own):,} {noun}{', which also trained the shared part' if has_shared else ''}"
        if stage == Stage.SERVED:
            return "by each device's choice on its validation split"
        return "by fine-tuning on each device"

    def details(self) -> Iterator[str]:
        """Yield sentences on the devices, on personalization without rounds, and on what is not measured."""
        first, last = self.data.first, self.data.last
        if first is None or last is None:
            return
        before, after = self._common(first, last)
        if not after:
            return
        counts = count_helped(after, before, self.data.run.summary["direction"])
        failed = f", {last.statistics['failed']} failed" if last.statistics.get("failed") else ""
        yield (
            f"Of {counted(len(after), 'device')}: {counts.helped} helped, {counts.hurt} hurt, "
            f"{counts.same} unchanged{failed}."
        )
        yield from self._beside_others(first, last)
        yield from self._unseen(last)

    def _beside_others(self, first: EvaluatedModel, last: EvaluatedModel) -> Iterator[str]:
        """Yield what belongs to the comparisons of the first sentence, and the one that is missing."""
        for baseline, found in self._baseline(last):
            if parts := self._parts(first, last):
                yield f"The difference from {self._beginning(first)}: {parts}."
            yield f"The difference from {baseline.title}: {signed(found.value)} ({found.interval})."
        if self.data.is_personal and any(model.stage == Stage.PERSONALIZED for model in self.data.changed):
            rounds = f"more rounds of {first.title} alone" if self._has_pretrained else _ROUNDS
            yield f"Whether {rounds} would do the same is not measured here: `partita compare` does that."

    def _unseen(self, last: EvaluatedModel) -> Iterator[str]:
        """Yield the result on devices that training has not seen, if there are any."""
        own = self.data.run.summary.get("unseen", {}).get(last.stage, {})
        if "gap" not in own:
            return
        examples, gap = self.data.count_examples(last, seen=False), own["gap"]
        yield (
            f"On {counted(own['devices'], 'unseen device')} "
            f"({counted(examples, f'{self.data.split} example')}) the {self.metric} is "
            f"{own['weighted_mean']:.4f}, {abs(gap):.4f} {'worse' if gap > 0 else 'better'} than on the "
            f"{last.statistics['devices']:,} seen{_UNCERTAIN if own['devices'] < _FEW else ''}."
        )


def _is_clear(found: Difference) -> bool:
    """Return whether a difference can be divided: it is not zero, and its interval does not contain zero."""
    return found.verdict != UNCLEAR and round(found.value, _DIGITS) != 0


def _sentences(warnings: Sequence[str]) -> str:
    """Return warnings as sentences.

    >>> _sentences(["the run diverged", "`a` failed"])
    'The run diverged. `a` failed.'
    """
    return " ".join(f"{warning[:1].upper()}{warning[1:]}." for warning in warnings)
