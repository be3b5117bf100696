"""The result of a run in a sentence: what further rounds gave, apart from what fine-tuning gave."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from partita.progress.display import ACTIVITIES
from partita.protocol import Stage
from partita.report.differences import counted
from partita.report.models import EvaluatedModel
from partita.report.run.data import RunData
from partita.runs.warnings import divergence, failed_stages
from partita.studies.statistics import DeviceMetrics, count_helped, mean_of


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
            subject = f"More training without a personal part ({last.title})"
        return (
            f"{subject} reaches a {self.metric} of {mean_of(self._common(last, first)[0]):.4f}, "
            f"{found.compared_with(self._beginning(first))}{self._parts(first, last)}."
        )

    def _beginning(self, first: EvaluatedModel) -> str:
        pretrained = self.data.run.values["pretrain"]["rounds"]
        return f"{first.title} before it" if pretrained else "the model that it began with"

    def _common(self, *models: EvaluatedModel) -> list[DeviceMetrics]:
        """Return the metrics of models on the devices that all of them have."""
        found = [self.data.metrics_of(model) for model in models]
        shared = set(found[0]).intersection(*found[1:])
        return [{device: own[device] for device in own if device in shared} for own in found]

    def _parts(self, first: EvaluatedModel, last: EvaluatedModel) -> str:
        """Return how much of the difference each stage gave, on the devices that have them all."""
        own = [first, *(model for model in self.data.changed if model.run is self.data.run)]
        metrics = self._common(*own)
        if not self.data.is_personal or len(metrics[0]) < len(self._common(first, last)[0]):
            return ""
        gains = [self.data.sign * (mean_of(after) - mean_of(before)) for before, after in pairwise(metrics)]
        ways = [self._way(model.stage) for model in own[1:]]
        if len(ways) == 1:
            return f", all of it {ways[0]}"
        parts = [f"{gain:+.4f} {way}" for gain, way in zip(gains, ways, strict=True)]
        return f": {', '.join(parts[:-1])}, and {parts[-1]}"

    def _way(self, stage: Stage) -> str:
        """Return what a stage did to the model before it."""
        if stage == Stage.PERSONALIZED:
            own = [datum for datum in self.data.rounds if datum["stage"] == ACTIVITIES[stage]]
            more = "more " if self.data.run.values["pretrain"]["rounds"] else ""
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
        yield from self._baseline(first)
        if self.data.is_personal and any(model.stage == Stage.PERSONALIZED for model in self.data.changed):
            yield "How much of it more rounds without a personal part would give, “partita compare” measures."

    def _baseline(self, first: EvaluatedModel) -> Iterator[str]:
        """Yield what fine-tuning of the pretrained model gives without further rounds."""
        for model in self.data.changed:
            found = self.data.difference(model, first) if model.run is not self.data.run else None
            if found:
                compared = found.compared_with(self._beginning(first))
                yield f"Personalization alone, without further rounds ({model.title}): {compared}."


def _sentences(warnings: Sequence[str]) -> str:
    """Return warnings as sentences.

    >>> _sentences(["the run diverged", "`a` failed"])
    'The run diverged. `a` failed.'
    """
    return " ".join(f"{warning[:1].upper()}{warning[1:]}." for warning in warnings)
