"""One page of several runs and comparisons: every model of each, and what can be compared between them."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.config.provenance import COMMAND
from partita.protocol import DeviceId
from partita.report.comparison.standings import BEST
from partita.report.differences import Difference, difference
from partita.report.figures import Datum
from partita.report.forest_section import Line, forest_row, forest_section
from partita.report.page import Page, Section
from partita.report.sample import Sample, sample_among
from partita.report.sections import change_of
from partita.report.side_by_side.answer import SideBySideAnswer
from partita.report.side_by_side.comparable import better, check_same, other_data
from partita.report.side_by_side.ranked import RankedModel, RankedModels
from partita.report.side_by_side.settings import settings_table
from partita.report.side_by_side.sources import Source, SourceModel
from partita.report.tables.entries import Entry, Interval, Rounded
from partita.report.tables.means import mean_std
from partita.report.tables.models import interval_notes
from partita.report.tables.table import Table
from partita.shown import shown_id

_EXPLANATION = (
    "Weighted means over a model's own devices, averaged over its own seeds, ± their standard deviation. "
    "Difference: paired over the devices and seeds that both have, positive if better, with its 95 % "
    "confidence interval. Rounds and traffic are those of training; a run that begins from a file does not "
    "count how it was made."
)
"""The note on the columns of the table."""
_PART = "personal part"


def side_by_side_page(sources: Sequence[Source]) -> Page:
    """Return the page of several runs and comparisons.

    Raises:
        ConfigError: one has another metric or split than the first.
    """
    for other in sources[1:]:
        check_same(sources[0], other)
    return _SideBySide(RankedModels(sources)).page()


@dataclass(frozen=True)
class _SideBySide:
    """Builds the page from the sources."""

    ranking: RankedModels

    def page(self) -> Page:
        """Return the page."""
        first, answer = self._first, SideBySideAnswer(self.ranking, self._metric)
        return Page(
            title=_listed([source.name for source in self._sources]),
            answer=answer.sentence(),
            details=[*answer.details(), *filter(None, [self._sample.explanation])],
            sections=[*self._settings(), self._chart(), self._table()],
            data={"devices": list(self._devices()), "models": self._data},
            metric=f"{self._metric}{self._over_seeds}",
            change=change_of(first.metric, first.direction),
            split=first.split,
            listed=self._listed_models(),
            sample=self._sample.explanation,
            facts=self._facts(),
            config="\n".join(f"# {source.name}\n\n{source.folder.config_text}" for source in self._sources),
        )

    @cached_property
    def _sample(self) -> Sample:
        """The devices in the table of devices."""
        return sample_among(device for source in self._sources for device in source.devices)

    @property
    def _sources(self) -> Sequence[Source]:
        return self.ranking.sources

    @property
    def _first(self) -> Source:
        return self._sources[0]

    def _listed_models(self) -> list[str]:
        """Return the models in the table of all devices, none if it has room for all of them."""
        names = [each.name for each in self.ranking.all]
        few = [name for place, name in enumerate(names) if place < BEST or name == self._reference]
        return few if len(names) > BEST + 1 else []

    @property
    def _metric(self) -> str:
        return f"{self._first.split} {self._first.metric}"

    @property
    def _over_seeds(self) -> str:
        """Words for the table of all devices, if a model has several seeds."""
        several = any(len(model.by_seed) > 1 for source in self._sources for model in source.models)
        return ", mean over a model's own seeds," if several else ""

    @property
    def _reference(self) -> str:
        return f"{self._first.name}: {self._first.reference.name}"

    @cached_property
    def _line(self) -> Line:
        """The reference: the first source's own."""
        (mean,) = [each.mean for each in self.ranking.all if each.model is self._first.reference]
        return Line(title=self._reference, mean=mean, direction=self._first.direction)

    @cached_property
    def _data(self) -> list[Datum]:
        return [self._datum(each) for each in self.ranking.all]

    def _datum(self, each: RankedModel) -> Datum:
        return {"source": each.source.name, **forest_row(each.name, each.mean, each.gain, self._line)}

    def _settings(self) -> Iterator[Section]:
        if (table := settings_table(self._sources)).rows:
            yield Section(title="Settings that differ", table=table)

    def _chart(self) -> Section:
        common = self.ranking.common()
        notes = [f"All of this is over the {common} that all have."] if common else []
        return forest_section(
            self._data,
            self._line,
            self._metric,
            title="All models",
            direction=self._first.direction,
            notes=notes,
        )

    def _difference(self, source: Source, model: SourceModel) -> Difference | None:
        """Return the difference from the reference over all that both have, None for other data."""
        if model is self._first.reference or not self.ranking.is_comparable(source):
            return None
        return difference(model.by_seed, self._first.reference.by_seed, self._first.direction)

    def _table(self) -> Section:
        rows = [self._row(source, model) for source in self._sources for model in source.models]
        columns = [
            *("from", "model", _PART, self._first.metric, f"difference from {self._reference}"),
            *("devices", "seeds", "rounds", "MB up and down"),
        ]
        has_parts = any(model.part for source in self._sources for model in source.models)
        table = Table(
            name="side_by_side",
            title=f"{self._metric.capitalize()} of every model ({better(self._first)} is better)",
            columns=columns if has_parts else [column for column in columns if column != _PART],
            rows=rows if has_parts else [_without(row, columns.index(_PART)) for row in rows],
            notes=[
                *(*other_data(self._sources), _EXPLANATION, *interval_notes(rows)),
                *(note for source in self._sources for note in source.notes),
            ],
        )
        changes = f"In the table of all devices, every change is relative to {self._reference}."
        paragraphs = [] if self._listed_models() else [changes]
        return Section(title="Metric, difference and costs", table=table, paragraphs=paragraphs)

    def _row(self, source: Source, model: SourceModel) -> list[Entry]:
        found = self._difference(source, model)
        return [
            source.name,
            model.title,
            model.part,
            mean_std(model.by_seed),
            Interval.of(found),
            len(model.devices),
            len(model.by_seed),
            round(model.rounds),
            Rounded(model.sent / 1e6),
        ]

    def _devices(self) -> Iterator[Datum]:
        """Yield the metric of every model on every device, the reference first."""
        for each in sorted(self.ranking.all, key=lambda each: each.model is not self._first.reference):
            is_other = not self.ranking.is_comparable(each.source)
            for device in sorted(filter(self._sample.__contains__, each.model.devices)):
                yield {
                    "device": f"{each.source.name}: {shown_id(device)}" if is_other else shown_id(device),
                    "model": each.name,
                    "split": self._first.split,
                    "examples": each.source.examples.get(device),
                    "metric": statistics.fmean(_by_seed(each.model, device).values()),
                    "change": None if is_other else self._change(each.model, device),
                }

    def _change(self, model: SourceModel, device: DeviceId) -> float | None:
        """Return the change of a device from the reference, over the seeds that both have; None without."""
        own, other = _by_seed(model, device), _by_seed(self._first.reference, device)
        sign = 1 if self._first.direction == "up" else -1
        changes = [sign * (own[seed] - other[seed]) for seed in own if seed in other]
        return statistics.fmean(changes) if changes and model is not self._first.reference else None

    def _facts(self) -> dict[str, str]:
        """Return the command that made each source, as it was typed; its folder if there was none."""
        return {
            source.name: source.folder.values["made_with"].get(COMMAND) or f"{source.folder.path}"
            for source in self._sources
        }


def _listed(names: Sequence[str]) -> str:
    """Return names with commas and "and".

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _without(row: Sequence[Entry], place: int) -> list[Entry]:
    return [*row[:place], *row[place + 1 :]]


def _by_seed(model: SourceModel, device: DeviceId) -> dict[int, float]:
    """Return the metric of a device by seed."""
    return {seed: values[device][0] for seed, values in model.by_seed.items() if device in values}
