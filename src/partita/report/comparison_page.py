"""The page of a comparison: its tables, and every device under every method."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from partita.report.charts import devices as device_charts
from partita.report.charts import training as training_charts
from partita.report.charts.chart import Legend
from partita.report.comparison_data import WHOLE, ComparisonData, read_comparison
from partita.report.comparison_tables import comparison_tables
from partita.report.curve_sections import CurveSections, comparison_curves
from partita.report.entries import Entry, Rounded
from partita.report.page import Page, Section
from partita.report.sections import (
    change_of,
    chart_section,
    counted,
    distribution_section,
    examples_section,
    parameters_section,
    reproduction,
    scatter_section,
)
from partita.report.tables import Table
from partita.runs.folder import RunFolder
from partita.studies.comparison import Comparison
from partita.studies.results import Results, Variant, listed
from partita.studies.statistics import count_helped

_TITLES = {
    "methods": "Methods",
    "metrics": "All metrics",
    "partial": "Partial personalization",
    "finetuning": "Final fine-tuning",
    "stateless": "Stateful and stateless devices",
    "devices": "Devices helped and hurt",
    "training": "Costs of training",
    "unseen": "Unseen devices",
    "tuned": "Tuned settings",
}
"""The headings of the tables."""


def comparison_page(comparison: Comparison) -> Page:
    """Return the page of a comparison, with all of its runs that are finished."""
    return _ComparisonPage(read_comparison(comparison)).page()


@dataclass(frozen=True)
class _ComparisonPage:
    """Builds the page from the comparison's data."""

    data: ComparisonData

    @property
    def _results(self) -> Results:
        return self.data.results

    def page(self) -> Page:
        """Return the page."""
        folder = RunFolder(self.data.comparison.folder)
        seeds = sorted({seed for runs in self._results.outcomes.values() for seed in runs})
        examples = self.data.training_examples.items()
        command = f"partita compare {folder.config_file.name} out=FOLDER"
        return Page(
            title=f"{folder.values['name']}: comparison",
            answer=self._answer(),
            sections=[
                *self._tables(),
                *self._curves.sections,
                self._training(),
                *self._charts(),
                self._costs(),
            ],
            data={
                "devices": self.data.devices,
                "rounds": self.data.rounds,
                "models": self.data.points,
                "sizes": [{"device": device, "examples": count} for device, count in examples],
                **self._curves.data,
                **({"unseen": self.data.unseen} if self.data.unseen else {}),
            },
            metric=f"{self._results.split} {self._results.metric}{self._over_seeds}",
            change=self._change,
            split=self._results.split,
            facts=reproduction(folder.values, command) | {"Seeds": ", ".join(map(str, seeds))},
            config=folder.config_text,
        )

    @cached_property
    def _curves(self) -> CurveSections:
        return comparison_curves(self.data)

    @property
    def _has_seeds(self) -> bool:
        """Whether any device was evaluated with several seeds."""
        return any(datum["seeds"] > 1 for datum in self.data.devices)

    @property
    def _over_seeds(self) -> str:
        return ", mean over seeds" if self._has_seeds else ""

    @property
    def _change(self) -> str:
        return change_of(self._results.metric, self._results.direction)

    def _answer(self) -> str:
        count = len(self._results.failures)
        failed = "1 failure is" if count == 1 else f"{count} failures are"
        missing = f" {failed} listed below every table, and not compared." if count else ""
        diverged = f"{listed(cells)} diverged. " if (cells := self._results.diverged) else ""
        return f"{diverged}{self._best()}{missing}"

    def _best(self) -> str:
        outcomes, reference = self._results.outcomes, self.data.reference
        measured = {
            variant: sum(len(outcome.last) for outcome in own.values()) for variant, own in outcomes.items()
        }
        complete = [variant for variant in outcomes if measured[variant] == max(measured.values())]
        most = len(outcomes[complete[0]])
        best = max(complete, key=lambda variant: self.data.sign * self.data.mean(variant))
        answer = (
            f"{self.data.name(best)} has the best {self._results.split} {self._results.metric} of "
            f"{counted(len(complete), 'model')}: {self.data.mean(best):.4f} over {counted(most, 'seed')}"
        )
        counts = self._counts(best, reference)
        if best == reference or not counts:
            return f"{answer}."
        helped, hurt = (_mean_text(statistics.fmean(each)) for each in zip(*counts, strict=True))
        before = f"{self.data.name(reference)} ({self.data.mean(reference):.4f})"
        per_seed = " per seed" if most > 1 else ""
        return (
            f"{answer}, {self.data.change(best):.4f} better than {before}. "
            f"It helps {helped} devices and hurts {hurt}{per_seed}."
        )

    def _counts(self, best: Variant, reference: Variant) -> list[tuple[int, int]]:
        """Return how many devices the best model helps and hurts, for each seed that both have."""
        own, other = self._results.outcomes[best], self._results.outcomes.get(reference, {})
        both = [seed for seed in own if seed in other]
        counts = [count_helped(own[seed].last, other[seed].last, self._results.direction) for seed in both]
        return [(count.helped, count.hurt) for count in counts]

    def _tables(self) -> Iterator[Section]:
        for table in comparison_tables(self._results):
            yield Section(title=_TITLES[table.name], table=table)

    def _training(self) -> Section:
        rounds = self.data.rounds
        if not rounds:
            return Section(title="Training", paragraphs=["No training round with a loss."])
        methods, parts = (list(dict.fromkeys(datum[key] for datum in rounds)) for key in ("method", "part"))
        caption = (
            f"Training loss by round{self._over_seeds}. Fine-tuning is not drawn. Learning rates, devices, "
            "traffic and seconds by round are on the page of each run, which “partita report "
            "FOLDER/cells/NAME” writes."
        )
        legend = Legend(methods=self.data.methods, shown=methods, parts=parts)
        return chart_section(training_charts.losses(caption, legend))

    def _charts(self) -> Iterator[Section]:
        data, reference = self.data, self.data.name(self.data.reference)
        if data.reference not in self._results.outcomes:
            missing = f"{reference}, the reference for every change, has no result: no change can be drawn."
            yield Section(title="Changes", paragraphs=[missing])
            return
        yield parameters_section(data.points, self._change, data.methods, self._without_parameters())
        if not any(datum["change"] for datum in data.devices):
            yield Section(title="Devices", paragraphs=["No device's metric differs between models."])
            return
        names = [data.name(variant) for variant in data.drawn]
        parts = list(dict.fromkeys(part or WHOLE for _, part in data.drawn))
        legend = Legend(methods=data.methods, shown=data.titles(data.drawn), parts=parts)
        relative = f"relative to {reference}{self._over_seeds}"
        caption = f"Each point is one device under one method: its change {relative}, by training examples."
        scatter = device_charts.scatter(self._change, f"{caption}{self._omitted()}", legend)
        yield scatter_section(data.devices, scatter)
        yield distribution_section(data.devices, self._change, names)
        band = " The band is the range over seeds." if self._has_seeds else ""
        caption = f"The change of every device {relative}, lowest first.{band}{self._omitted()}"
        yield chart_section(
            device_charts.sorted_changes(self._change, caption, names, has_band=self._has_seeds)
        )
        yield examples_section(list(data.training_examples.values()))

    def _without_parameters(self) -> str:
        """Return the changes that the chart by personal parameters does not show."""
        known = {point["model"] for point in self.data.points}
        others = [variant for variant in self.data.drawn if self.data.name(variant) not in known]
        listed = f" Not drawn, without a personal part: {self._listed(others)}." if others else ""
        return f"{listed}{self._omitted()}"

    def _omitted(self) -> str:
        """Return the variants that are not drawn because they would dwarf all others."""
        drawn = {*self.data.drawn, self.data.reference}
        others = [variant for variant in self._results.outcomes if variant not in drawn]
        return f" Not drawn, far below the others: {self._listed(others)}." if others else ""

    def _listed(self, variants: list[Variant]) -> str:
        return "; ".join(
            f"{self.data.name(variant)}: {self.data.change(variant):+.4f}" for variant in variants
        )

    def _costs(self) -> Section:
        """Return the costs of each personal part for one device, as the runs have recorded them."""
        rows: list[list[Entry]] = []
        for part, costs in self._costs_by_part().items():
            sizes = [costs.get(name) for name in ("up_bytes", "down_bytes", "memory_bytes")]
            kilobytes = [None if size is None else Rounded(size / 1e3) for size in sizes]
            rows.append([part, costs.get("personal"), *kilobytes])
        table = Table(
            name="costs",
            title="Costs of a personal part for one device",
            columns=["personal part", "personal parameters", "kB sent", "kB received", "kB of memory"],
            rows=rows,
            notes=[
                "Sent and received per round of personalization; memory to train on one example.",
                *self._results.failures,
            ],
        )
        paragraphs = ["The table Methods has the total traffic and the processor time of all devices."]
        return Section(title="Traffic and memory", paragraphs=paragraphs, table=table if rows else None)

    def _costs_by_part(self) -> dict[str, Mapping[str, Any]]:
        """Return the costs that the first run of each personal part has recorded."""
        found: dict[str, Mapping[str, Any]] = {}
        for (_, part), runs in self._results.runs.items():
            recorded = [run.costs for run in runs.values() if run.costs is not None]
            if part and recorded:
                found.setdefault(part, recorded[0])
        return found


def _mean_text(count: float) -> str:
    """Return a mean of counts without a trailing zero.

    >>> _mean_text(38.0), _mean_text(1234.33)
    ('38', '1,234.3')
    """
    return f"{count:,.1f}".removesuffix(".0")
