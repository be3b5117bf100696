"""The page of a comparison: its tables, and every device under every method."""

import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from partita.comparison.grid import START, base_of
from partita.comparison.results import Results, collect
from partita.comparison.results import Row as Key
from partita.comparison.running import Comparison
from partita.comparison.statistics import mean_of, moved
from partita.comparison.tables import sheets_of
from partita.data.arrow import read_table
from partita.describe import describe
from partita.durable import held
from partita.errors import ConfigError
from partita.finished import is_finished
from partita.pages import charts
from partita.pages.facts import Row, ranked, training_of
from partita.pages.page import Page, Section, write_page
from partita.pages.sections import drawn, gained_of, made_by, scattered, sizes_of, spread
from partita.protocol import DeviceId, Stage
from partita.report.sheets import Entry, Rounded, Sheet

Place = tuple[DeviceId, str]
"""A device and a split."""
BySeed = Mapping[int, Mapping[Place, float]]
_TITLES = {
    "methods": "Methods",
    "fedalt_fedsim": "FedAlt, FedSim and FT (part.)",
    "finetuning": "The final finetuning",
    "stateless": "With and without a state",
    "devices": "Devices helped and hurt",
    "tuned": "What tuning chose",
}
"""What the tables are called on the page."""
_WHOLE = "the whole model"
"""What stands for the part where a method has none to choose."""


def write_comparison_page(comparison: Comparison) -> Path:
    """Write the page of a comparison, of all its cells that are finished; return the page's path."""
    with held(comparison.folder, wait=True):
        results = collect(comparison, comparison.failed())
        page = _Reader(comparison, results, _examples(comparison)).page()
        return write_page(page, comparison.folder)


def _examples(comparison: Comparison) -> dict[DeviceId, int]:
    """Return how many training examples devices have, all that any finished cell has measured."""
    found: dict[DeviceId, int] = {}
    for cell in comparison.cells:
        if is_finished(comparison.folder_of(cell)):
            table = read_table(comparison.folder_of(cell) / "devices.parquet")
            rows = table.select(["device", "split", "examples"]).to_pylist()
            found |= {row["device"]: row["examples"] for row in rows if row["split"] == "train"}
    return found


@dataclass(frozen=True)
class _Reader:
    """Says what there is to say of a comparison."""

    comparison: Comparison
    results: Results
    examples: Mapping[DeviceId, int]

    def page(self) -> Page:
        """Return the whole page."""
        text = (self.comparison.folder / "config.toml").read_text()
        values = tomllib.loads(text)
        devices, rounds = self._devices(), self._rounds()
        seeds = sorted({seed for runs in self.results.outcomes.values() for seed in runs})
        return Page(
            title=f"{values['name']}: a comparison",
            answer=self._answer(),
            sections=[*self._tables(), self._training(rounds), *self._charts(devices), self._costs()],
            data={"devices": devices, "rounds": rounds, "models": self._points(), "sizes": self._sizes()},
            metric=f"{self.results.split} {self.results.metric}, mean over seeds",
            gained=self._gained,
            split=self.results.split,
            facts=made_by(values, "partita compare config.toml out=FOLDER")
            | {"Seeds": ", ".join(map(str, seeds))},
            config=text,
        )

    @property
    def _gained(self) -> str:
        return gained_of(self.results.metric, self.results.direction)

    @property
    def _sign(self) -> float:
        return {"up": 1.0, "down": -1.0}[self.results.direction]

    @property
    def _drawn(self) -> list[Key]:
        """Return the rows that have a change to draw."""
        return [row for row in self.results.outcomes if row[0] != self.results.reference]

    @property
    def _methods(self) -> list[str]:
        """Return what methods are called, in the order of their colours, what others begin from last."""
        rows = [*self._drawn, *self.results.outcomes]
        return list(dict.fromkeys(self.results.titles[row[0]] for row in rows))

    def _name(self, row: Key) -> str:
        title = self.results.titles[row[0]]
        return f"{title} ({row[1]})" if row[1] else title

    def _mean(self, row: Key) -> float:
        return statistics.fmean(mean_of(outcome.last) for outcome in self.results.outcomes[row].values())

    def _answer(self) -> str:
        results = self.results
        rows = list(results.outcomes)
        most = max(map(len, results.outcomes.values()))
        best = max(
            (row for row in rows if len(results.outcomes[row]) == most),
            key=lambda row: self._sign * self._mean(row),
        )
        reference = (results.reference, "")
        runs = len(results.outcomes[best])
        seeds = f"{runs} seeds" if runs > 1 else "one seed"
        answer = (
            f"{self._name(best)} has the best {results.split} {results.metric} of {len(rows)} rows, "
            f"{self._mean(best):.4f} over {seeds}"
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
        helped, hurt = (statistics.fmean(getattr(c, name) for c in counts) for name in ("helped", "hurt"))
        return (
            f"{answer}; {self._name(reference)} has {self._mean(reference):.4f}. In a seed it helps "
            f"{helped:.1f} devices and hurts {hurt:.1f}."
        )

    def _tables(self) -> Iterator[Section]:
        for sheet in sheets_of(self.results):
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
        return drawn(charts.losses(says, self._methods, trained, parts))

    def _rounds(self) -> list[Row]:
        """Return a row a method, part and round of training: the loss, the mean over seeds."""
        found: list[Row] = []
        for row in self.results.outcomes:
            losses: dict[int, list[float]] = {}
            for folder in self._folders(row).values():
                for line in training_of(folder):
                    if line["work"] == "update" and line["loss"] is not None:
                        losses.setdefault(line["round"] + 1, []).append(line["loss"])
            own = {
                "model": self._name(row),
                "method": self.results.titles[row[0]],
                "part": "pretraining" if row[0] == START else row[1] or _WHOLE,
            }
            found += [{**own, "round": at, "loss": statistics.fmean(each)} for at, each in losses.items()]
        return found

    def _costs(self) -> Section:
        """Return what a device sends, keeps and needs with each personal part."""
        config = base_of(self.comparison.values)
        title, texts = (
            "Traffic and memory",
            ["What all devices sent, and their seconds, is in the table Methods."],
        )
        try:
            costs = describe(config, self.comparison.folder).partitions
        except ConfigError as error:
            return Section(
                title=title, texts=[*texts, f"What a device needs to train cannot be said here: {error}"]
            )
        compared = dict.fromkeys(part for _, part in self.results.outcomes if part in costs)
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
        reference = self._name((self.results.reference, ""))
        if (self.results.reference, "") not in self.results.outcomes:
            missing = f"{reference}, which others are compared with, is not finished: no change can be drawn."
            yield Section(title="What personalization changed", texts=[missing])
            return
        points = self._points()
        methods = self._methods[: len({row[0] for row in self._drawn})]
        parts = list(dict.fromkeys(row[1] or _WHOLE for row in self._drawn))
        title = "Change against personal parameters"
        if points:
            listed = "; ".join(f"{p['model']}: {p['kept']:,} numbers, {p['gain']:+.4f}" for p in points)
            yield Section(title=title, chart=charts.parameters(self._gained, f"{listed}.", methods, parts))
        else:
            yield Section(title=title, texts=["No model has a part of its own on devices."])
        if not any(row["gain"] for row in devices):
            yield Section(title="Devices", texts=["No device's metric differs between models."])
            return
        names = [self._name(row) for row in self._drawn]
        against = f"against {reference}, means over seeds"
        says = f"A point is a device under a method: its change {against}, against its training examples."
        yield scattered(devices, self._gained, says, methods, parts)
        yield spread(devices, self._gained, names)
        several = any(len(runs) > 1 for runs in self.results.outcomes.values())
        band = " The band is from the least to the most of any seed." if several else ""
        says = f"The change of every device {against}, the least first.{band}"
        yield drawn(charts.in_order(self._gained, says, names, has_band=several))
        yield sizes_of(list(self.examples.values()))

    def _points(self) -> list[Row]:
        reference = (self.results.reference, "")
        if reference not in self.results.outcomes:
            return []
        start = self._mean(reference)
        points = [
            {
                "model": self._name(row),
                "method": self.results.titles[row[0]],
                "part": row[1] or _WHOLE,
                "kept": max(outcome.kept for outcome in self.results.outcomes[row].values()),
                "gain": self._sign * (self._mean(row) - start),
            }
            for row in self._drawn
        ]
        return [point for point in points if point["kept"]]

    def _sizes(self) -> list[Row]:
        return [{"device": device, "examples": examples} for device, examples in self.examples.items()]

    def _devices(self) -> list[Row]:
        """Return a row a method, device and split: means over seeds, with the least and the most of any."""
        reference = (self.results.reference, "")
        before = self._measured(reference)
        found: list[Row] = []
        for row in sorted(self.results.outcomes, key=lambda row: row != reference):
            by_seed = self._measured(row)
            places = dict.fromkeys(place for seed in by_seed.values() for place in seed)
            start = before if row != reference else {}
            found += [self._device(row, place, by_seed, start) for place in places]
        return ranked(found, self.results.split)

    def _measured(self, row: Key) -> dict[int, dict[Place, float]]:
        """Return the metrics of a row's last stage, by seed, then by device and split."""
        return {seed: _last(folder) for seed, folder in self._folders(row).items()}

    def _folders(self, row: Key) -> dict[int, Path]:
        """Return the folders of a row's finished runs, by seed."""
        finished = self.results.outcomes.get(row, {})
        own = [cell for cell in self.comparison.cells if cell.row == row and cell.seed in finished]
        return {cell.seed: self.comparison.folder_of(cell) for cell in own}

    def _device(self, row: Key, place: Place, own: BySeed, before: BySeed) -> Row:
        device, split = place
        values = [seed[place] for seed in own.values() if place in seed]
        pairs = [
            (own[s][place], before[s][place]) for s in own if place in own[s] and place in before.get(s, {})
        ]
        gains = [self._sign * (after - start) for after, start in pairs]
        return {
            "device": device,
            "model": self._name(row),
            "method": self.results.titles[row[0]],
            "part": row[1] or _WHOLE,
            "split": split,
            "examples": self.examples.get(device),
            "seeds": len(values),
            "metric": statistics.fmean(values),
            "gain": statistics.fmean(gains) if gains else None,
            "low": min(gains, default=None),
            "high": max(gains, default=None),
        }


def _last(folder: Path) -> dict[Place, float]:
    """Return what the model of a cell's last stage of training does, by device and split."""
    rows = read_table(folder / "devices.parquet").select(["stage", "device", "split", "metric"]).to_pylist()
    stages = [stage for stage in Stage if stage != Stage.SERVED and any(r["stage"] == stage for r in rows)]
    own = [row for row in rows if row["stage"] == stages[-1] and row["metric"] is not None]
    return {(row["device"], row["split"]): row["metric"] for row in own}


def _kilobytes(count: int | None) -> Entry:
    return None if count is None else Rounded(count / 1e3)
