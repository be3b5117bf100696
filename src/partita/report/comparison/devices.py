"""The charts of a comparison's devices, under the best models and the reference."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from partita.report.charts import devices as device_charts
from partita.report.comparison.colors import legend_of
from partita.report.comparison.data import ComparisonData
from partita.report.comparison.standings import Standings
from partita.report.differences import counted, quantiles_text
from partita.report.page import Section
from partita.report.sections import (
    change_of,
    chart_section,
    distribution_section,
    examples_section,
    scatter_section,
)


@dataclass(frozen=True)
class DeviceSections:
    """Builds the sections with charts of every device."""

    standings: Standings
    over_seeds: str
    """The words that say that changes are means over seeds; empty with one seed."""

    @property
    def _data(self) -> ComparisonData:
        return self.standings.data

    def all(self) -> Iterator[Section]:
        """Yield the charts, or the reason why there are none."""
        data, reference = self._data, self._data.name(self._data.reference)
        if data.reference not in data.models:
            missing = f"{reference}, the reference for every change, has no result: no change can be drawn."
            yield Section(title="Changes", paragraphs=[missing])
            return
        if not any(datum["change"] for datum in data.devices):
            yield Section(title="Devices", paragraphs=["No device's metric differs between models."])
            return
        change = change_of(data.results.metric, data.results.direction)
        omitted = f"{self._omitted()}{data.sample.note}"
        relative = f"relative to {reference}{self.over_seeds}"
        caption = f"Each point is one device under one model: its change {relative}, by training examples."
        legend = replace(legend_of(self.standings), shown=self._drawn)
        yield scatter_section(data.devices, device_charts.scatter(change, f"{caption}{omitted}", legend))
        yield distribution_section(data.devices, change, legend, f"{omitted}{self._quantiles()}")
        has_band = bool(self.over_seeds)
        band = " The band is the range over seeds." if has_band else ""
        caption = f"The change of every device {relative}, lowest first.{band}{omitted}"
        yield chart_section(device_charts.sorted_changes(change, caption, legend, has_band=has_band))
        yield examples_section(list(data.training_examples.values()))

    def _quantiles(self) -> str:
        """Return the spread of changes over all devices, if only some of them are drawn."""
        data = self._data
        if data.sample.devices is None:
            return ""
        shown = [variant for variant in self.standings.shown if variant != data.reference]
        return quantiles_text({data.name(variant): data.changes_of(variant) for variant in shown})

    @property
    def _drawn(self) -> list[str]:
        """The models in the charts: changes are relative to the reference, so it has none."""
        shown = [variant for variant in self.standings.shown if variant != self._data.reference]
        return [self._data.name(variant) for variant in shown]

    def listed(self) -> list[str]:
        """Return the models in the table of all devices, none if it has room for all of them."""
        shown = [self._data.name(variant) for variant in self.standings.shown]
        return shown if len(self._data.models) > len(shown) + 1 else []

    def _omitted(self) -> str:
        """Return which models are not drawn: those below the best, and those that would dwarf the others."""
        data, shown = self._data, self.standings.shown
        others = [variant for variant in data.drawn if variant not in shown]
        far = [variant for variant in data.models if variant not in (*data.drawn, data.reference)]
        sentences = ""
        if others:
            more = counted(len(others), "other model")
            sentences = (
                f" Shown: the {len(self._drawn)} best models. Click a device in the table of all devices to "
                f"see it under the {more}."
            )
        if far:
            changes = "; ".join(f"{data.name(variant)}: {data.change(variant):+.4f}" for variant in far)
            sentences += f" Not drawn, far from the others: {changes}."
        return sentences
