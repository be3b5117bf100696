"""The page of a comparison: its tables, and every device under every method."""

import statistics
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from partita.durable import locked
from partita.errors import ConfigError
from partita.report import charts
from partita.report.comparison_facts import WHOLE, Compared, compared_in
from partita.report.comparison_tables import sheets_of
from partita.report.page import Page, Section, write_page
from partita.report.run_facts import Row
from partita.report.sections import counted, drawn, gained_of, made_by, readable, scattered, sizes_of, spread
from partita.report.sheets import Entry, Rounded, Sheet
from partita.studies.cells import base_of
from partita.studies.compare import Comparison
from partita.studies.describe import describe
from partita.studies.results import Results
from partita.studies.statistics import moved

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
    with locked(comparison.folder, wait=True):
        with readable(comparison.folder):
            compared = compared_in(comparison)
            devices, rounds = compared.devices(), compared.rounds()
        return write_page(_Reader(compared, devices, rounds).page(), comparison.folder)


@dataclass(frozen=True)
class _Reader:
    """Says what there is to say of a comparison."""

    compared: Compared
    devices: Sequence[Row]
    rounds: Sequence[Row]

    @property
    def _results(self) -> Results:
        return self.compared.results

    def page(self) -> Page:
        """Return the whole page."""
        text = (self.compared.comparison.folder / "config.toml").read_text()
        values = tomllib.loads(text)
        seeds = sorted({seed for runs in self._results.outcomes.values() for seed in runs})
        return Page(
            title=f"{values['name']}: a comparison",
            answer=self._answer(),
            sections=[*self._tables(), self._training(), *self._charts(), self._costs()],
            data={
                "devices": self.devices,
                "rounds": self.rounds,
                "models": self.compared.points(),
                "sizes": self.compared.sizes(),
            },
            metric=f"{self._results.split} {self._results.metric}{self._over_seeds}",
            gained=self._gained,
            split=self._results.split,
            facts=made_by(values, "partita compare config.toml out=FOLDER")
            | {"Seeds": ", ".join(map(str, seeds))},
            config=text,
        )

    @property
    def _has_seeds(self) -> bool:
        """Whether any device was measured with several seeds."""
        return any(row["seeds"] > 1 for row in self.devices)

    @property
    def _over_seeds(self) -> str:
        return ", mean over seeds" if self._has_seeds else ""

    @property
    def _gained(self) -> str:
        return gained_of(self._results.metric, self._results.direction)

    def _answer(self) -> str:
        outcomes = self._results.outcomes
        most = max(map(len, outcomes.values()))
        whole = [row for row in outcomes if len(outcomes[row]) == most]
        best = max(whole, key=lambda row: self.compared.sign * self.compared.mean(row))
        reference = self.compared.reference
        answer = (
            f"{self.compared.name(best)} has the best {self._results.split} {self._results.metric} of "
            f"{counted(len(whole), 'row')}, {self.compared.mean(best):.4f} over {counted(most, 'seed')}"
        )
        if best == reference or reference not in outcomes:
            return f"{answer}."
        began = f"{self.compared.name(reference)} ({self.compared.mean(reference):.4f})"
        both = outcomes[best].keys() & outcomes[reference].keys()
        counts = [
            moved(outcomes[best][seed].last, outcomes[reference][seed].last, self._results.direction)
            for seed in both
        ]
        if not counts:
            return f"{answer}."
        helped = statistics.fmean(count.helped for count in counts)
        hurt = statistics.fmean(count.hurt for count in counts)
        in_a_seed = " in a seed" if most > 1 else ""
        whom = f"it helps {_mean_text(helped)} devices and hurts {_mean_text(hurt)}{in_a_seed}"
        return f"{answer}: better than {began} by {self.compared.gain(best):.4f}; {whom}."

    def _tables(self) -> Iterator[Section]:
        for sheet in sheets_of(self._results):
            yield Section(title=_TITLES[sheet.name], sheet=sheet)

    def _training(self) -> Section:
        if not self.rounds:
            return Section(title="Training", texts=["No round of training, or none that says its loss."])
        trained, parts = (list(dict.fromkeys(row[key] for row in self.rounds)) for key in ("method", "part"))
        says = (
            f"The loss on training rows by round{self._over_seeds}. Finetuning comes by blocks of devices "
            "and is not drawn. Learning rates, devices, bytes and seconds by round are on each run's page, "
            "which “partita report FOLDER/cells/NAME” writes."
        )
        return drawn(
            charts.losses(says, charts.Key(methods=self.compared.methods, shown=trained, parts=parts))
        )

    def _costs(self) -> Section:
        """Return what a device sends, keeps and needs with each personal part."""
        config, title = base_of(self.compared.comparison.values), "Traffic and memory"
        texts = ["What went to and from all devices, and their seconds, is in the table Methods."]
        try:
            costs = describe(config, self.compared.comparison.folder).partitions
        except ConfigError as error:
            texts.append(f"What a device needs to train cannot be said here: {error}")
            return Section(title=title, texts=texts)
        parts = list(dict.fromkeys(part for _, part in self._results.outcomes if part))
        if unknown := [part for part in parts if part not in costs]:
            texts.append(f"What these cost a device is on the pages of their runs: {', '.join(unknown)}.")
        names = ("up_bytes", "down_bytes", "memory_bytes")
        rows: list[list[Entry]] = [
            [part, costs[part].get("personal"), *(_kilobytes(costs[part].get(name)) for name in names)]
            for part in parts
            if part in costs
        ]
        sheet = Sheet(
            name="costs",
            title="What a personal part costs a device",
            columns=["personal part", "personal parameters", "kB sent", "kB received", "kB of memory"],
            rows=rows,
            notes=["Sent and received in a round of FedAlt; memory to train on one example."],
        )
        return Section(title=title, texts=texts, sheet=sheet if rows else None)

    def _charts(self) -> Iterator[Section]:
        compared = self.compared
        reference = compared.name(compared.reference)
        if compared.reference not in self._results.outcomes:
            missing = f"{reference}, which others are compared with, is not finished: no change can be drawn."
            yield Section(title="What personalization changed", texts=[missing])
            return
        yield self._parameters()
        if not any(row["gain"] for row in self.devices):
            yield Section(title="Devices", texts=["No device's metric differs between models."])
            return
        names = [compared.name(row) for row in compared.drawn]
        parts = list(dict.fromkeys(row[1] or WHOLE for row in compared.drawn))
        against = f"against {reference}{self._over_seeds}"
        says = f"A point is a device under a method: its change {against}, against its training examples."
        key = charts.Key(methods=compared.methods, shown=compared.titled(compared.drawn), parts=parts)
        chart = charts.scatter(self._gained, f"{says}{self._left_out()}", key)
        yield scattered(self.devices, chart)
        yield spread(self.devices, self._gained, names)
        band = " The band is from the least to the most of any seed." if self._has_seeds else ""
        says = f"The change of every device {against}, the least first.{band}{self._left_out()}"
        yield drawn(charts.in_order(self._gained, says, names, has_band=self._has_seeds))
        yield sizes_of(list(compared.examples.values()))

    def _parameters(self) -> Section:
        title, points = "Change against personal parameters", self.compared.points()
        if not points:
            return Section(title=title, texts=["No model has a part of its own on devices."])
        listed = "; ".join(f"{p['model']}: {p['kept']:,} numbers, {p['gain']:+.4f}" for p in points)
        known = {point["model"] for point in points}
        none = [row for row in self.compared.drawn if self.compared.name(row) not in known]
        without = "; ".join(f"{self.compared.name(row)}: {self.compared.gain(row):+.4f}" for row in none)
        says = f"{listed}." + (f" With nothing personal, and not drawn: {without}." if none else "")
        shown = list(dict.fromkeys(point["method"] for point in points))
        parts = list(dict.fromkeys(point["part"] for point in points))
        says += self._left_out()
        key = charts.Key(methods=self.compared.methods, shown=shown, parts=parts)
        return drawn(charts.parameters(self._gained, says, key))

    def _left_out(self) -> str:
        """Return which rows are not drawn because they would hide the others."""
        seen = {*self.compared.drawn, self.compared.reference}
        far = [row for row in self._results.outcomes if row not in seen]
        listed = "; ".join(f"{self.compared.name(row)}: {self.compared.gain(row):+.4f}" for row in far)
        return f" So far below that it is not drawn: {listed}." if far else ""


def _mean_text(count: float) -> str:
    """Return a mean of counts, without a digit that says nothing.

    >>> _mean_text(38.0), _mean_text(1234.33)
    ('38', '1,234.3')
    """
    return f"{count:,.1f}".removesuffix(".0")


def _kilobytes(count: int | None) -> Entry:
    return None if count is None else Rounded(count / 1e3)
