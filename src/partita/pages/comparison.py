"""The page of a comparison: its tables, and every device under every method."""

import statistics
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from partita.comparison.grid import base_of
from partita.comparison.results import Results
from partita.comparison.running import Comparison
from partita.comparison.statistics import moved
from partita.comparison.tables import sheets_of
from partita.describe import describe
from partita.durable import held
from partita.errors import ConfigError
from partita.pages import charts
from partita.pages.compared import WHOLE, Compared, compared_in
from partita.pages.facts import Row
from partita.pages.page import Page, Section, write_page
from partita.pages.sections import drawn, gained_of, made_by, scattered, sizes_of, spread
from partita.report.sheets import Entry, Rounded, Sheet

_TITLES = {
    "methods": "Methods",
    "fedalt_fedsim": "FedAlt, FedSim and FT (part.)",
    "finetuning": "The final finetuning",
    "stateless": "With and without a state",
    "devices": "Devices helped and hurt",
    "tuned": "What tuning chose",
}
"""What the tables are called on the page."""


def write_comparison_page(comparison: Comparison) -> Path:
    """Write the page of a comparison, of all its cells that are finished; return the page's path."""
    with held(comparison.folder, wait=True):
        return write_page(_Reader(compared_in(comparison)).page(), comparison.folder)


@dataclass(frozen=True)
class _Reader:
    """Says what there is to say of a comparison."""

    compared: Compared

    @property
    def _results(self) -> Results:
        return self.compared.results

    def page(self) -> Page:
        """Return the whole page."""
        text = (self.compared.comparison.folder / "config.toml").read_text()
        values = tomllib.loads(text)
        devices, rounds = self.compared.devices(), self.compared.rounds()
        seeds = sorted({seed for runs in self._results.outcomes.values() for seed in runs})
        return Page(
            title=f"{values['name']}: a comparison",
            answer=self._answer(),
            sections=[*self._tables(), self._training(rounds), *self._charts(devices), self._costs()],
            data={
                "devices": devices,
                "rounds": rounds,
                "models": self.compared.points(),
                "sizes": self.compared.sizes(),
            },
            metric=f"{self._results.split} {self._results.metric}, mean over seeds",
            gained=self._gained,
            split=self._results.split,
            facts=made_by(values, "partita compare config.toml out=FOLDER")
            | {"Seeds": ", ".join(map(str, seeds))},
            config=text,
        )

    @property
    def _gained(self) -> str:
        return gained_of(self._results.metric, self._results.direction)

    def _answer(self) -> str:
        results = self._results
        rows = list(results.outcomes)
        most = max(map(len, results.outcomes.values()))
        best = max(
            (row for row in rows if len(results.outcomes[row]) == most),
            key=lambda row: self.compared.sign * self.compared.mean(row),
        )
        reference = (results.reference, "")
        runs = len(results.outcomes[best])
        seeds = f"{runs} seeds" if runs > 1 else "one seed"
        answer = (
            f"{self.compared.name(best)} has the best {results.split} {results.metric} of {len(rows)} rows, "
            f"{self.compared.mean(best):.4f} over {seeds}"
        )
        if best == reference or reference not in results.outcomes:
            return f"{answer}."
        counts = [
            moved(outcome.last, results.of(reference[0])[seed].last, results.direction)
            for seed, outcome in results.outcomes[best].items()
            if seed in results.of(reference[0])
        ]
        if not counts:
            return f"{answer}."
        helped = statistics.fmean(count.helped for count in counts)
        hurt = statistics.fmean(count.hurt for count in counts)
        return (
            f"{answer}; {self.compared.name(reference)} has {self.compared.mean(reference):.4f}. "
            f"In a seed it helps {helped:.1f} devices and hurts {hurt:.1f}."
        )

    def _tables(self) -> Iterator[Section]:
        for sheet in sheets_of(self._results):
            yield Section(title=_TITLES[sheet.name], sheet=sheet)

    def _training(self, rounds: Sequence[Row]) -> Section:
        if not rounds:
            return Section(title="Training", texts=["No round of training, or none that says its loss."])
        trained, parts = (list(dict.fromkeys(row[key] for row in rounds)) for key in ("method", "part"))
        says = (
            "The loss on training rows by round, means over seeds. Finetuning comes by blocks of devices and "
            "is not drawn. Learning rates, devices, bytes and seconds by round are on each run's page, which "
            "`partita report FOLDER/cells/NAME` writes."
        )
        return drawn(charts.losses(says, self.compared.methods, trained, parts))

    def _costs(self) -> Section:
        """Return what a device sends, keeps and needs with each personal part."""
        config = base_of(self.compared.comparison.values)
        title, texts = (
            "Traffic and memory",
            ["What all devices sent, and their seconds, is in the table Methods."],
        )
        try:
            costs = describe(config, self.compared.comparison.folder).partitions
        except ConfigError as error:
            return Section(
                title=title, texts=[*texts, f"What a device needs to train cannot be said here: {error}"]
            )
        compared = dict.fromkeys(part for _, part in self._results.outcomes if part in costs)
        names = ("up_bytes", "down_bytes", "memory_bytes")
        rows: list[list[Entry]] = [
            [part, costs[part]["personal"], *(_kilobytes(costs[part].get(name)) for name in names)]
            for part in compared
        ]
        sheet = Sheet(
            name="costs",
            title="What a personal part costs a device",
            columns=["personal part", "personal parameters", "kB sent", "kB received", "kB of memory"],
            rows=rows,
            notes=["Sent and received in a round of FedAlt; memory to train on one example."],
        )
        return Section(title=title, texts=texts, sheet=sheet if rows else None)

    def _charts(self, devices: Sequence[Row]) -> Iterator[Section]:
        reference = self.compared.name((self._results.reference, ""))
        if (self._results.reference, "") not in self._results.outcomes:
            missing = f"{reference}, which others are compared with, is not finished: no change can be drawn."
            yield Section(title="What personalization changed", texts=[missing])
            return
        points = self.compared.points()
        methods = self.compared.methods[: len({row[0] for row in self.compared.drawn})]
        parts = list(dict.fromkeys(row[1] or WHOLE for row in self.compared.drawn))
        title = "Change against personal parameters"
        if points:
            listed = "; ".join(f"{p['model']}: {p['kept']:,} numbers, {p['gain']:+.4f}" for p in points)
            yield Section(title=title, chart=charts.parameters(self._gained, f"{listed}.", methods, parts))
        else:
            yield Section(title=title, texts=["No model has a part of its own on devices."])
        if not any(row["gain"] for row in devices):
            yield Section(title="Devices", texts=["No device's metric differs between models."])
            return
        names = [self.compared.name(row) for row in self.compared.drawn]
        against = f"against {reference}, means over seeds"
        says = f"A point is a device under a method: its change {against}, against its training examples."
        yield scattered(devices, self._gained, says, methods, parts)
        yield spread(devices, self._gained, names)
        several = any(len(runs) > 1 for runs in self._results.outcomes.values())
        band = " The band is from the least to the most of any seed." if several else ""
        says = f"The change of every device {against}, the least first.{band}"
        yield drawn(charts.in_order(self._gained, says, names, has_band=several))
        yield sizes_of(list(self.compared.examples.values()))


def _kilobytes(count: int | None) -> Entry:
    return None if count is None else Rounded(count / 1e3)
