"""The data of a comparison's report: means over seeds of every method on every device and in every round."""

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from partita.data.arrow import rows_of, rows_where, tuples_of
from partita.protocol import DeviceId
from partita.report.charts.training import PRETRAINING
from partita.report.differences import Changes, changes_between
from partita.report.figures import Datum
from partita.report.run.data import Place, ranked, training_rounds
from partita.report.sample import Sample, ids_in, sample_among
from partita.report.tables.models import ComparedModel, models_of
from partita.runs.folder import RunFolder
from partita.shown import shown, shown_id
from partita.studies.cells import START
from partita.studies.comparison import Comparison
from partita.studies.results import Results, Variant, collect
from partita.training.evaluation import last_stage

Measurements = Mapping[int, Mapping[Place, Datum]]
"""Rows of `devices.parquet`, by seed, then by device and split."""
WHOLE = "whole model"
"""The part of a method that defines its personal part itself."""


@dataclass(frozen=True)
class ComparisonData:
    """All data that a comparison's page shows, read from its folder."""

    comparison: Comparison
    results: Results

    @property
    def sign(self) -> float:
        """The factor that makes an improvement of the metric positive."""
        return {"up": 1.0, "down": -1.0}[self.results.direction]

    @property
    def reference(self) -> Variant:
        """The variant that changes are relative to."""
        return self.results.reference

    @cached_property
    def models(self) -> dict[Variant, ComparedModel]:
        """The models after their last stage, by variant."""
        return {model.variant: model for model in models_of(self.results) if not model.is_served}

    @cached_property
    def drawn(self) -> list[Variant]:
        """The variants in charts of changes; without local training if it would dwarf all others."""
        variants = [variant for variant in self.results.outcomes if variant != self.reference]
        if self.reference not in self.results.outcomes:
            return variants
        alone = [variant for variant in variants if self.models[variant].trains_alone]
        others = [abs(self.change(variant)) for variant in variants if variant not in alone]
        lowest = -max(others, default=math.inf)
        return [variant for variant in variants if variant not in alone or self.change(variant) >= lowest]

    @property
    def methods(self) -> list[str]:
        """The titles of all methods in the order of their colors; those that are not drawn are last."""
        return self.titles([*self.drawn, *self.results.outcomes])

    def titles(self, variants: Iterable[Variant]) -> list[str]:
        """Return the titles of the variants' methods, each once."""
        return list(dict.fromkeys(self.results.titles[method] for method, _ in variants))

    def name(self, variant: Variant) -> str:
        """Return the title of a variant: its method and its personal part."""
        title = self.results.titles[variant[0]]
        return shown(f"{title} ({variant[1]})" if variant[1] else title)

    def change(self, variant: Variant) -> float:
        """Return how much better a variant is than the reference; 0 without a device in common."""
        found = self.models[variant].difference_from(self.models[self.reference], self.results.direction)
        return found.value if found else 0.0

    @cached_property
    def training_examples(self) -> dict[DeviceId, int]:
        """The number of training examples of each device that any finished run has evaluated."""
        return self._training_examples(seen=True)

    def _training_examples(self, *, seen: bool) -> dict[DeviceId, int]:
        found: dict[DeviceId, int] = {}
        for run in self._all_runs:
            table = rows_where(run.devices if seen else run.unseen, "split", value="train")
            found.update(tuples_of(table, "device", "examples"))
        return found

    def unseen_examples(self, devices: Collection[DeviceId]) -> int:
        """Return the number of examples of unseen devices on the split that counts."""
        found: dict[DeviceId, int] = {}
        for run in self._all_runs:
            table = rows_where(run.unseen, "split", value=self.results.split)
            found.update(tuples_of(table, "device", "examples"))
        return sum(found[device] for device in devices)

    def is_personal(self, variant: Variant) -> bool:
        """Return whether devices have a personal part under a variant."""
        run = next(iter(self.results.runs[variant].values()))
        return run.values["partition"]["personal"] not in ("none", [])

    @cached_property
    def rounds(self) -> list[Datum]:
        """One datum for each variant and training round: the mean loss over seeds."""
        found: list[Datum] = []
        for variant in self.results.outcomes:
            losses: dict[int, list[float]] = {}
            runs = self._runs(variant)
            for run in runs.values():
                for line in training_rounds(run):
                    if line["work"] == "update" and line["loss"] is not None:
                        losses.setdefault(line["round"] + 1, []).append(line["loss"])
            own = {
                "model": self.name(variant),
                "method": self.results.titles[variant[0]],
                "part": PRETRAINING if variant[0] == START else variant[1] or WHOLE,
            }
            # With early stopping, seeds have different numbers of rounds.
            every = {at: each for at, each in losses.items() if len(each) == len(runs)}
            found += [{**own, "round": at, "loss": statistics.fmean(each)} for at, each in every.items()]
        return found

    @cached_property
    def devices(self) -> list[Datum]:
        """One datum for each variant, drawn device and split: means over seeds, and the range over seeds."""
        return self._devices(seen=True)

    @cached_property
    def unseen(self) -> list[Datum]:
        """The same as `devices`, of the devices that training has not seen."""
        return self._devices(seen=False)

    def _devices(self, *, seen: bool) -> list[Datum]:
        before, examples = self._measurements(self.reference, seen=seen), self._training_examples(seen=seen)
        found: list[Datum] = []
        for variant in sorted(self.results.outcomes, key=lambda variant: variant != self.reference):
            own = self._measurements(variant, seen=seen)
            places = dict.fromkeys(place for seed in own.values() for place in seed)
            start = before if variant != self.reference else {}
            found += [
                {**self._device(variant, place, own, start), "examples": examples.get(place[0])}
                for place in places
            ]
        if all(datum["seeds"] <= 1 for datum in found):
            found = [{key: datum[key] for key in datum if key not in ("low", "high")} for datum in found]
        return ranked(found, self.results.split)

    def _measurements(self, variant: Variant, *, seen: bool) -> dict[int, dict[Place, Datum]]:
        sample = self.sample if seen else self._unseen_sample
        runs = self._runs(variant)
        return {seed: _last_rows(run.reopened(), sample, seen=seen) for seed, run in runs.items()}

    @cached_property
    def sample(self) -> Sample:
        """The devices that training has seen and that are drawn."""
        return sample_among(ids_in(run.devices for run in self._all_runs))

    @cached_property
    def _unseen_sample(self) -> Sample:
        return sample_among(ids_in(run.unseen for run in self._all_runs))

    @property
    def _all_runs(self) -> Iterator[RunFolder]:
        """Every finished run, opened one after the other: tables are not held together."""
        return (run.reopened() for runs in self.results.runs.values() for run in runs.values())

    def changes_of(self, variant: Variant) -> Changes:
        """Return the change of each device from the reference, averaged over seeds."""
        own, other = (self.models[each].by_seed for each in (variant, self.reference))
        return changes_between(own, other, self.results.direction)

    def _runs(self, variant: Variant) -> dict[int, RunFolder]:
        """Return the finished runs of a variant that have a metric, by seed."""
        runs = self.results.runs.get(variant, {})
        return {seed: runs[seed] for seed in self.results.outcomes.get(variant, {})}

    def _device(self, variant: Variant, place: Place, own: Measurements, before: Measurements) -> Datum:
        """Return the means of one device on one split, over the seeds of a variant."""
        device, split = place
        rows = [measured[place] for measured in own.values() if place in measured]
        pairs = [(own[seed].get(place, {}), before.get(seed, {}).get(place, {})) for seed in own]
        known = [(a["metric"], b["metric"]) for a, b in pairs if _has_metric(a) and _has_metric(b)]
        changes = [self.sign * (after - start) for after, start in known]
        metrics = [row["metric"] for row in rows if _has_metric(row)]
        losses = [row["loss"] for row in rows if row["loss"] is not None]
        return {
            "device": shown_id(device),
            "model": self.name(variant),
            "method": self.results.titles[variant[0]],
            "part": variant[1] or WHOLE,
            "split": split,
            "seeds": len(metrics),
            "metric": _mean(metrics),
            "loss": _mean(losses),
            "reason": next((row["reason"] for row in rows if not _has_metric(row)), None),
            "change": _mean(changes),
            "low": min(changes, default=None),
            "high": max(changes, default=None),
        }


def read_comparison(comparison: Comparison) -> ComparisonData:
    """Return the data of a comparison's finished runs."""
    return ComparisonData(comparison, collect(comparison, comparison.failed()))


def _last_rows(run: RunFolder, sample: Sample, *, seen: bool) -> dict[Place, Datum]:
    """Return the rows of the model of a run's last training stage on drawn devices, by device and split."""
    table = run.devices if seen else run.unseen
    last = last_stage(table["stage"].unique().to_pylist())
    own = sample.rows_of(rows_where(table, "stage", value=str(last)))
    rows = rows_of(own.select(["stage", "device", "split", "metric", "loss", "reason"]))
    return {(row["device"], row["split"]): row for row in rows}


def _has_metric(row: Mapping[str, Any]) -> bool:
    return row.get("metric") is not None


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
