"""The page of one run."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from partita.protocol import Stage
from partita.report.charts import devices as device_charts
from partita.report.charts import training as training_charts
from partita.report.charts.chart import Legend
from partita.report.curve_sections import CurveSections, run_curves
from partita.report.differences import counted, quantiles_text
from partita.report.figures import Data, Datum
from partita.report.forest_section import Line, forest_row, forest_section
from partita.report.models import all_models
from partita.report.page import Page, Section
from partita.report.run.answer import RunAnswer
from partita.report.run.data import RunData, read_run
from partita.report.sections import (
    change_of,
    chart_section,
    distribution_section,
    examples_section,
    reproduction,
    scatter_section,
    setup_line,
    sizes_of,
)
from partita.report.tables.commands import bytes_text, models_table
from partita.report.tables.entries import Entry, Rounded
from partita.report.tables.failures import failures_table
from partita.report.tables.metrics import run_metrics
from partita.report.tables.onboarded import onboarded_table
from partita.report.tables.table import Table
from partita.report.tables.unseen import run_unseen_table
from partita.runs.folder import RunFolder
from partita.runs.warnings import failed_stages, warnings_of
from partita.studies.folders import check_finished

_QUANTITIES = {
    "loss": ("loss", "training loss"),
    "shared_lr": ("shared lr", "learning rate of the shared part"),
    "personal_lr": ("personal lr", "learning rate of the personal part"),
    "devices": ("devices", "devices that replied"),
    "megabytes": ("MB", "MB up and down"),
    "seconds": ("seconds", "processor time"),
}
"""Axis title and name of each training curve, by field of a round's datum."""
_ONE_SEED = "The intervals are over one seed: they cover other devices like these, not other seeds."


def run_page(run: RunFolder) -> Page:
    """Return the page of a finished run.

    Raises:
        ConfigError: the run is not finished, or a file in its folder is damaged.
    """
    check_finished(run)
    return _RunPage(read_run(run)).page()


@dataclass(frozen=True)
class _RunPage:
    """Builds the page from the run's data."""

    data: RunData

    def page(self) -> Page:
        """Return the page."""
        run, answer, sample = self.data.run, RunAnswer(self.data, self._metric), self.data.sample
        return Page(
            title=run.values["name"],
            setup=setup_line([run]),
            answer=answer.sentence(),
            details=[*answer.details(), *filter(None, [sample.explanation])],
            sections=list(self._sections()),
            data=self._data_sets(),
            metric=self._metric,
            change=self._change,
            split=self.data.split,
            sample=sample.explanation,
            facts=self._facts(),
            config=run.config_text,
        )

    def _facts(self) -> dict[str, str]:
        """Return how to reproduce the run."""
        run = self.data.run
        command = f"partita run {run.config_file.name} out=FOLDER"
        return reproduction(run.values, command) | {"Seed": str(run.values["seed"])}

    @cached_property
    def _curves(self) -> CurveSections:
        return run_curves(self.data.run)

    @property
    def _metric(self) -> str:
        return f"{self.data.split} {self.data.run.summary['metric']}"

    @property
    def _change(self) -> str:
        return change_of(self.data.run.summary["metric"], self.data.run.summary["direction"])

    @property
    def _titles(self) -> list[str]:
        """The titles of all models but the pretrained one."""
        return [model.title for model in self.data.changed]

    def _data_sets(self) -> Data:
        return {
            "devices": self.data.devices,
            "rounds": self._updates(),
            "models": self._means(),
            "sizes": sizes_of(self.data.training_examples),
            "visits": self.data.visits,
            **self._curves.data,
            **({"unseen": self.data.unseen} if self.data.unseen else {}),
            **({"onboarded": self.data.onboarded} if self.data.onboarded else {}),
        }

    def _sections(self) -> Iterator[Section]:
        if len(self._means()) > 1:
            yield self._forest()
        yield self._models()
        if (metrics := run_metrics(self.data.run.summary, all_models(self.data.run))).rows:
            yield Section(title="All metrics", table=metrics)
        yield from self._curves.sections
        if (unseen := run_unseen_table(self.data.run)).rows:
            yield Section(title="Unseen devices", table=unseen)
        yield from self._onboarded()
        yield self._training()
        if (failures := failures_table(self.data.run)).rows:
            yield Section(title="Failures", table=failures)
        if self.data.changed:
            yield from self._devices()
        else:
            reason = "This run has no personalization stage."
            if self.data.run.summary.get("failed"):
                reason = "Personalization failed: there is no change to draw."
            yield Section(title="Personalization", paragraphs=[reason])
        yield examples_section(self.data.training_examples)
        yield self._costs()

    def _onboarded(self) -> Iterator[Section]:
        """Yield the section on devices that have joined the run, if there are any."""
        known = self.data.known
        if not known.onboardings and known.unfinished is None:
            return
        again = {device for each in known.onboardings if each.is_again for device in each.devices}
        found = [f"{counted(len(known.joined), 'device')} joined since the run was finished."]
        if again:
            verb = "was" if len(again) == 1 else "were"
            found.append(f"{counted(len(again), 'device')} {verb} personalized again.")
        found.append("All other results on this page are without them.")
        table = onboarded_table(known)
        yield Section(title="Onboarded devices", table=table, paragraphs=[" ".join(found)])

    def _forest(self) -> Section:
        """Return the chart of all models, with what the intervals of one run do not cover."""
        rows = self._means()
        has_bars = any(row["low"] is not None for row in rows)
        notes = [_ONE_SEED] if has_bars else []
        return forest_section(
            rows,
            self._line,
            self._metric,
            title="Models at a glance",
            direction=self.data.run.summary["direction"],
            notes=notes,
        )

    def _models(self) -> Section:
        paragraphs = [
            "Helped and hurt: devices with a strictly better or worse metric than under the first model.",
            *self._missing_stages(),
        ]
        run = self.data.run
        table = models_table(run.summary, all_models(run), warnings_of(run))
        return Section(title="Models", table=table, paragraphs=paragraphs)

    def _missing_stages(self) -> list[str]:
        """Return a sentence for each stage that the run does not have."""
        own = {model.stage for model in self.data.models if model.run is self.data.run}
        trained = {datum["stage"] for datum in self.data.rounds}
        missing = [] if "pretraining" in trained else ["No pretraining: the first row is the initial model."]
        if Stage.PRETRAINED not in own:
            missing.append("No device has a metric for the pretrained model.")
        own |= self.data.run.summary.get("failed", {}).keys()
        later = (Stage.PERSONALIZED, Stage.FINETUNED)
        missing += [f"No model of the stage `{stage}`." for stage in later if stage not in own]
        return missing

    def _updates(self) -> list[Datum]:
        """Return the rounds in which the shared part was trained."""
        return [datum for datum in self.data.rounds if datum["work"] == "update"]

    def _training(self) -> Section:
        rounds = self._updates()
        if not rounds:
            return Section(title="Training", paragraphs=["No training round: the shared part is unchanged."])
        known = [field for field in _QUANTITIES if any(row[field] is not None for row in rounds)]
        losses = [row["loss"] for row in rounds if row["loss"] is not None]
        names = ", ".join(_QUANTITIES[field][1] for field in known)
        caption = f"{counted(len(rounds), 'round')} by stage: {names}."
        if losses:
            caption += f" The loss went from {losses[0]:.4f} to {losses[-1]:.4f}."
        if any(row["work"] == "finetune" for row in self.data.rounds):
            caption += " Fine-tuning, once for each device, is not drawn."
        return Section(
            title="Training",
            chart=training_charts.curves({field: _QUANTITIES[field][0] for field in known}, caption),
        )

    def _devices(self) -> Iterator[Section]:
        """Yield the charts of every device's change."""
        changes = [datum["change"] for datum in self.data.devices if datum["change"] is not None]
        if not any(changes):
            reason = f"No device has a {self._metric} for more than one model."
            if changes:
                reason = "No model changes the metric of any device: nothing to draw."
            yield Section(title="Devices", paragraphs=[reason])
            return
        legend = Legend(models=self._titles, shown=self._titles)
        scatter = device_charts.scatter(self._change, self._scatter_caption(), legend)
        yield scatter_section(self.data.devices, scatter)
        note = self.data.sample.note
        yield distribution_section(self.data.devices, self._change, legend, f"{note}{self._quantiles()}")
        caption = f"The change of every device on the {self.data.split} split, lowest first.{note}"
        yield chart_section(device_charts.sorted_changes(self._change, caption, legend, has_band=False))

    def _scatter_caption(self) -> str:
        model = self.data.last or self.data.changed[-1]
        changes = self.data.changes_of(model)
        better = int((changes > 0).sum())
        return (
            "Each point is one device under one model: its change by its number of training examples. "
            f"On the {self.data.split} split, {model.title} improves {better} of "
            f"{counted(len(changes), 'device')}.{self.data.sample.note}"
        )

    def _quantiles(self) -> str:
        """Return the spread of changes over all devices, if only some of them are drawn."""
        if self.data.sample.devices is None:
            return ""
        return quantiles_text({model.title: self.data.changes_of(model) for model in self.data.changed})

    @property
    def _line(self) -> Line | None:
        """The pretrained model, the reference of a run."""
        first = self.data.first
        mean = first.statistics["weighted_mean"] if first else 0.0
        return first and Line(title=first.title, mean=mean, direction=self.data.run.summary["direction"])

    def _means(self) -> list[Datum]:
        """Return the rows of the chart of all models, the best first."""
        first = self.data.first
        rows = [
            forest_row(
                model.title,
                model.statistics["weighted_mean"],
                self.data.difference(model, first) if first and model is not first else None,
                self._line,
            )
            for model in self.data.models
        ]
        return sorted(rows, key=lambda row: -self.data.sign * row["mean"])

    def _costs(self) -> Section:
        rows: list[list[Entry]] = []
        for stage in dict.fromkeys(datum["stage"] for datum in self.data.rounds):
            own = [datum for datum in self.data.rounds if datum["stage"] == stage]
            sums = {name: sum(datum[name] for datum in own) for name in ("devices", "megabytes", "seconds")}
            rounds = len(own) if own[0]["work"] == "update" else None
            rows.append([
                stage, rounds, sums["devices"], Rounded(sums["megabytes"]), Rounded(sums["seconds"]),
            ])  # fmt: skip
        table = Table(
            name="traffic",
            title="Training by stage",
            columns=["stage", "rounds", "device visits", "MB up and down", "device-seconds"],
            rows=rows,
            notes=[
                "Device-seconds: processor time of the visits.",
                *(f"{sentence[0].upper()}{sentence[1:]}." for sentence in failed_stages(self.data.run)),
            ],
        )
        paragraphs = [_device_costs(self.data.run)]
        return Section(title="Traffic and memory", table=table if rows else None, paragraphs=paragraphs)


def _device_costs(run: RunFolder) -> str:
    """Return what a device keeps, sends and needs, as the run has recorded it."""
    costs = run.costs
    if costs is None:
        return "This run has no record of the costs for a device."
    at_most = "at most " if "sizes" in costs else ""
    facts = [f"keeps {at_most}{counted(costs['personal'], 'personal parameter')}"]
    if run.values["personalize"]["rounds"]:
        facts.append(f"sends {at_most}{bytes_text(costs['up_bytes'])} per round of personalization")
    if costs.get("memory_bytes"):
        facts.append(f"needs {at_most}{bytes_text(costs['memory_bytes'])} of memory to train on one example")
    return f"A device {', '.join(facts[:-1])}{' and ' if len(facts) > 1 else ''}{facts[-1]}."
