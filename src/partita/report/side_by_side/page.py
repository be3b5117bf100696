"""One page of several runs and comparisons: every model of each, and what can be compared between them."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.config.provenance import COMMAND
from partita.protocol import DeviceId
from partita.report.comparison.standings import BEST
from partita.report.differences import Difference, counted, difference
from partita.report.figures import Datum
from partita.report.forest import Line, forest_row, forest_section
from partita.report.page import Page, Section
from partita.report.sections import change_of
from partita.report.side_by_side.comparable import better, check_same, has_other_data, other_data, unshared
from partita.report.side_by_side.sources import Source, SourceModel
from partita.report.tables.entries import Entry, Interval, Rounded
from partita.report.tables.means import mean_std
from partita.report.tables.models import interval_notes
from partita.report.tables.table import Table

_EXPLANATION = (
    "Weighted means over devices, averaged over seeds, ± their standard deviation. Difference: paired over "
    "devices and seeds, positive if better, with its 95 % confidence interval. Rounds and traffic are those "
    "of training; a run that begins from a file does not count how it was made."
)
"""The note on the columns of the table."""


def side_by_side_page(sources: Sequence[Source]) -> Page:
    """Return the page of several runs and comparisons.

    Raises:
        ConfigError: one has another metric or split than the first.
    """
    for other in sources[1:]:
        check_same(sources[0], other)
    return _SideBySide(sources).page()


@dataclass(frozen=True)
class _SideBySide:
    """Builds the page from the sources."""

    sources: Sequence[Source]

    def page(self) -> Page:
        """Return the page."""
        first = self.sources[0]
        return Page(
            title=_listed([source.name for source in self.sources]),
            answer=" ".join([*other_data(self.sources), self._best()]),
            details=unshared(self.sources),
            sections=[self._chart(), self._table()],
            data={"devices": list(self._devices()), "models": [self._datum(*each) for each in self._sorted]},
            metric=self._metric,
            change=change_of(first.metric, first.direction),
            split=first.split,
            listed=self._listed_models(),
            facts=self._facts(),
            config="\n".join(f"# {source.name}\n\n{source.folder.config_text}" for source in self.sources),
        )

    def _listed_models(self) -> list[str]:
        """Return the models in the table of all devices, none if it has room for all of them."""
        names = [_name(source, model) for source, model in self._sorted]
        few = [name for place, name in enumerate(names) if place < BEST or name == self._reference]
        return few if len(names) > BEST + 1 else []

    @property
    def _metric(self) -> str:
        return f"{self.sources[0].split} {self.sources[0].metric}"

    @property
    def _reference(self) -> str:
        return _name(self.sources[0], self.sources[0].reference)

    @cached_property
    def _others(self) -> set[str]:
        """The sources whose data are not those of the first."""
        return {other.name for other in self.sources[1:] if has_other_data(self.sources[0], other)}

    @cached_property
    def _line(self) -> Line:
        """The reference: the first source's own."""
        first = self.sources[0]
        return Line(title=self._reference, mean=first.reference.mean, direction=first.direction)

    @cached_property
    def _sorted(self) -> list[tuple[Source, SourceModel]]:
        """Every model, the best first: on the devices and seeds of the reference where it has them."""
        sign = 1 if self.sources[0].direction == "up" else -1
        every = [(source, model) for source in self.sources for model in source.models]
        return sorted(every, key=lambda each: -sign * self._datum(*each)["point"])

    def _best(self) -> str:
        """Return the best model of all, or of each source where the data differ."""
        if self._others:
            best = {source.name: model for source, model in reversed(self._sorted)}
            names = [source.name for source in self.sources]
            each = [f"{name}: {best[name].name} ({best[name].mean:.4f})" for name in names]
            return f"The best {self._metric} of each: {'; '.join(each)}."
        source, model = self._sorted[0]
        where = counted(len(self._sorted), "model")
        answer = f"{_name(source, model)} has the best {self._metric} of {where}: {model.mean:.4f}"
        found = self._difference(source, model)
        return f"{answer}, {found.compared_with(self._reference)}." if found else f"{answer}."

    def _difference(self, source: Source, model: SourceModel) -> Difference | None:
        """Return the paired difference from the reference, None for itself and for other data."""
        first = self.sources[0]
        if model is first.reference or source.name in self._others:
            return None
        return difference(model.by_seed, first.reference.by_seed, first.direction)

    def _datum(self, source: Source, model: SourceModel) -> Datum:
        found = self._difference(source, model)
        return {"source": source.name, **forest_row(_name(source, model), model.mean, found, self._line)}

    def _chart(self) -> Section:
        rows = [self._datum(source, model) for source, model in self._sorted]
        return forest_section(
            rows, self._line, self._metric, title="All models", notes=unshared(self.sources)
        )

    def _table(self) -> Section:
        rows = [self._row(source, model) for source in self.sources for model in source.models]
        table = Table(
            name="side_by_side",
            title=f"{self._metric.capitalize()} of every model ({better(self.sources[0])} is better)",
            columns=[
                *("from", "model", "personal part", self.sources[0].metric),
                f"difference from {self._reference}",
                *("devices", "seeds", "rounds", "MB up and down"),
            ],
            rows=rows,
            notes=[
                *(*other_data(self.sources), *unshared(self.sources), _EXPLANATION, *interval_notes(rows)),
                *(note for source in self.sources for note in source.notes),
            ],
        )
        changes = f"In the table of all devices, every change is relative to {self._reference}."
        return Section(title="Metric, difference and costs", table=table, paragraphs=[changes])

    def _row(self, source: Source, model: SourceModel) -> list[Entry]:
        found = self._difference(source, model)
        return [
            source.name,
            model.title,
            model.part,
            mean_std(model.by_seed),
            found and Interval(found.value, found.low, found.high, seeds=found.seeds),
            len(model.devices),
            len(model.by_seed),
            round(model.rounds),
            Rounded(model.sent / 1e6),
        ]

    def _devices(self) -> Iterator[Datum]:
        """Yield the metric of every model on every device, the reference first."""
        first = self.sources[0]
        before = _by_device(first.reference)
        sign = 1 if first.direction == "up" else -1
        every = sorted(self._sorted, key=lambda each: each[1] is not first.reference)
        for source, model in every:
            is_other, is_reference = source.name in self._others, model is first.reference
            for device, metric in _by_device(model).items():
                is_paired = device in before and not is_other and not is_reference
                yield {
                    "device": f"{source.name}: {device}" if is_other else device,
                    "model": _name(source, model),
                    "split": first.split,
                    "examples": source.examples.get(device),
                    "metric": metric,
                    "change": sign * (metric - before[device]) if is_paired else None,
                }

    def _facts(self) -> dict[str, str]:
        """Return the folder of each source and the command that made it."""
        commands = {s.name: s.folder.values["made_with"].get(COMMAND, "") for s in self.sources}
        return {
            source.name: " ".join(filter(None, (f"{source.folder.path}", commands[source.name])))
            for source in self.sources
        }


def _listed(names: Sequence[str]) -> str:
    """Return names with commas and "and".

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _name(source: Source, model: SourceModel) -> str:
    return f"{source.name}: {model.name}"


def _by_device(model: SourceModel) -> Mapping[DeviceId, float]:
    """Return the mean metric of each device over seeds."""
    return {
        device: statistics.fmean(values[device][0] for values in model.by_seed.values() if device in values)
        for device in sorted(model.devices)
    }
