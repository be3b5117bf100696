"""The page of a comparison: its tables, and every device under every method."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from partita.report.charts import training as training_charts
from partita.report.comparison.answer import ComparisonAnswer
from partita.report.comparison.colors import legend_of
from partita.report.comparison.data import ComparisonData, read_comparison
from partita.report.comparison.devices import DeviceSections
from partita.report.comparison.standings import Standings
from partita.report.comparison.tradeoffs import PARAMETERS, TRAFFIC, tradeoff_section
from partita.report.comparison.unseen import UnseenAnswer
from partita.report.curve_sections import CurveSections, comparison_curves
from partita.report.forest_section import forest_section
from partita.report.page import Page, Section
from partita.report.sections import change_of, chart_section, reproduction, setup_line, sizes_of
from partita.report.tables.comparison import comparison_tables
from partita.report.tables.entries import Entry, Interval, Rounded
from partita.report.tables.models import interval_notes
from partita.report.tables.table import Table
from partita.runs.folder import RunFolder
from partita.studies.comparison import Comparison
from partita.studies.results import Results

_FEW = 3
"""With more models than this, the best one is also the luckiest."""
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
    data = read_comparison(comparison)
    return _ComparisonPage(data, Standings(data)).page()


@dataclass(frozen=True)
class _ComparisonPage:
    """Builds the page from the comparison's data."""

    data: ComparisonData
    standings: Standings

    @property
    def _results(self) -> Results:
        return self.data.results

    def page(self) -> Page:
        """Return the page."""
        answer, devices = ComparisonAnswer(self.standings), DeviceSections(self.standings, self._over_seeds)
        folder = RunFolder(self.data.comparison.folder)
        seeds = sorted({seed for runs in self._results.outcomes.values() for seed in runs})
        sample = self.data.sample.explanation
        command = f"partita compare {folder.config_file.name} out=FOLDER"
        return Page(
            title=f"{folder.values['name']}: comparison",
            setup=setup_line(
                [run.reopened() for runs in self._results.runs.values() for run in runs.values()]
            ),
            answer=answer.sentence(),
            details=[*answer.details(), *filter(None, [sample])],
            sections=[
                *self._models(),
                *self._tables(),
                *self._curves.sections,
                self._training(),
                *devices.all(),
                self._costs(),
            ],
            data={
                "devices": self.data.devices,
                "rounds": self.data.rounds,
                "models": self.standings.points,
                "sizes": sizes_of(self.data.training_examples.values()),
                **self._curves.data,
                **({"unseen": self.data.unseen} if self.data.unseen else {}),
            },
            metric=f"{self._metric}{self._over_seeds}",
            change=self._change,
            split=self._results.split,
            listed=devices.listed(),
            sample=sample,
            facts=reproduction(folder.values, command) | {"Seeds": ", ".join(map(str, seeds))},
            config=folder.config_text,
        )

    @cached_property
    def _curves(self) -> CurveSections:
        return comparison_curves(self.standings)

    @property
    def _has_seeds(self) -> bool:
        """Whether any device was evaluated with several seeds."""
        return any(datum["seeds"] > 1 for datum in self.data.devices)

    @property
    def _metric(self) -> str:
        return f"{self._results.split} {self._results.metric}"

    @property
    def _over_seeds(self) -> str:
        return ", mean over seeds" if self._has_seeds else ""

    @property
    def _change(self) -> str:
        return change_of(self._results.metric, self._results.direction)

    def _models(self) -> Iterator[Section]:
        """Yield the charts of all models: beside the reference, and by what they cost."""
        standings = self.standings
        yield forest_section(
            standings.points,
            standings.line,
            self._metric,
            title="All models",
            direction=self._results.direction,
            notes=list(self._forest_notes()),
        )
        yield tradeoff_section(standings, TRAFFIC, self._metric)
        yield tradeoff_section(standings, PARAMETERS, self._metric)

    def _forest_notes(self) -> Iterator[str]:
        """Yield what the intervals of the chart of all models do not cover."""
        if len(self.standings.all) > _FEW:
            yield (
                f"The first of {len(self.standings.all)} models is partly first by luck: an interval is for "
                "one model, and not corrected for choosing the best of many."
            )
        found = [self.standings.difference(model) for model in self.standings.all]
        yield from interval_notes([[Interval.of(each) for each in found]])

    def _tables(self) -> Iterator[Section]:
        findings = {"unseen": UnseenAnswer(self.standings).finding()}
        for table in comparison_tables(self._results):
            yield Section(title=_TITLES[table.name], finding=findings.get(table.name, ""), table=table)

    def _training(self) -> Section:
        rounds = self.data.rounds
        if not rounds:
            return Section(title="Training", paragraphs=["No training round with a loss."])
        legend, models = legend_of(self.standings), {datum["model"] for datum in rounds}
        others = "" if models <= {*legend.shown} else " Thin: all other models."
        legend = replace(legend, shown=[model for model in legend.shown if model in models])
        caption = (
            f"Training loss by round{self._over_seeds}.{others} Fine-tuning is not drawn. Learning rates, "
            "devices, traffic and seconds by round are on the page of each run, which “partita report "
            "FOLDER/cells/NAME” writes."
        )
        return chart_section(training_charts.losses(caption, legend))

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
            columns=[
                "personal part",
                "personal parameters",
                "kB sent",
                "kB received",
                "kB of memory for one example",
            ],
            rows=rows,
            notes=[
                "Sent and received per round of personalization. Memory: to train on one example.",
                *self._results.failures,
            ],
        )
        paragraphs = [
            f"The table “{_TITLES['training']}” has the traffic and the processor time of all devices."
        ]
        return Section(title="Traffic and memory", paragraphs=paragraphs, table=table if rows else None)

    def _costs_by_part(self) -> dict[str, Mapping[str, Any]]:
        """Return the costs that the first run of each personal part has recorded."""
        found: dict[str, Mapping[str, Any]] = {}
        for (_, part), runs in self._results.runs.items():
            recorded = [run.costs for run in runs.values() if run.costs is not None]
            if part and recorded:
                found.setdefault(part, recorded[0])
        return found
