"""The page of one run."""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.config.reading import read_config
from partita.describe import describe
from partita.errors import ConfigError
from partita.finished import is_finished
from partita.pages import charts
from partita.pages.facts import Facts, Row, facts_of, kept_by
from partita.pages.page import Page, Section, write_page
from partita.protocol import Stage
from partita.report.sheets import Entry, Rounded, Sheet
from partita.report.tables import models_sheet
from partita.report.troubles import troubles_of

_QUANTITIES = {
    "loss": "loss",
    "rate": "learning rate",
    "heard": "devices",
    "megabytes": "MB sent",
    "seconds": "seconds",
}


def write_run_page(folder: Path) -> Path:
    """Write the page of the finished run in a folder, with figures and tables; return the page's path.

    Raises:
        ConfigError: there is no finished run in it.
    """
    if not is_finished(folder):
        raise ConfigError(f"`{folder}` holds no finished run: go on with `partita run --resume {folder}`.")
    return write_page(_Reader(facts_of(folder)).page(), folder)


@dataclass(frozen=True)
class _Reader:
    """Says what there is to say of a run."""

    facts: Facts

    def page(self) -> Page:
        """Return the whole page."""
        text = (self.facts.folder / "config.toml").read_text()
        values = tomllib.loads(text)
        return Page(
            title=values["name"],
            answer=self._answer(),
            sections=list(self._sections()),
            data=self._data(),
            metric=self._metric,
            gained=self._gained,
            facts={
                "The command that makes it again": "partita run config.toml out=FOLDER",
                "Seed": str(values["seed"]),
                **values.get("made_with", {}),
            },
            config=text,
        )

    @property
    def _metric(self) -> str:
        summary = self.facts.summary
        return f"{summary.get('split', 'test')} {summary['metric']}"

    @property
    def _gained(self) -> str:
        return gained_of(self.facts.summary["metric"], self.facts.summary["direction"])

    def _answer(self) -> str:
        first, last = self.facts.models[0].statistics, self.facts.last
        devices = f"{first['devices']} devices"
        if last is None:
            return (
                f"Nothing was personalised: {self.facts.models[0].title} has a {self._metric} of "
                f"{first['weighted_mean']:.4f} over {devices}."
            )
        own = last.statistics
        better = _is_better(own["weighted_mean"], first["weighted_mean"], self.facts.summary["direction"])
        word = {True: "improved", False: "worsened", None: "left unchanged"}[better]
        return (
            f"Personalization ({last.title}) {word} {self._metric} from {first['weighted_mean']:.4f} to "
            f"{own['weighted_mean']:.4f} over {devices}: it helped {own['helped']}, hurt {own['hurt']} and "
            f"left {own['same']} as they were."
        )

    def _sections(self) -> Iterator[Section]:
        yield self._models()
        yield self._training()
        if self.facts.changed:
            yield from self._changes()
        else:
            yield Section(title="What personalization changed", texts=["No stage of this run personalised."])
        yield self._sizes()
        yield self._costs()

    def _models(self) -> Section:
        rows = [(model.title, model.statistics) for model in self.facts.models]
        troubles = [f"Mind: {trouble}." for trouble in troubles_of(self.facts.folder, self.facts.summary)]
        texts = ["Helped and hurt are strict, against the first row.", *self._absent(), *troubles]
        return Section(title="Models", sheet=models_sheet(self.facts.summary, rows), texts=texts)

    def _absent(self) -> list[str]:
        """Return which stages the run did not have."""
        own = {model.stage for model in self.facts.models if model.folder == self.facts.folder}
        names = {
            Stage.PERSONALISED: "There was no round of personalising (`personalise.rounds` is 0).",
            Stage.FINETUNED: "There was no finetuning (`finetune.epochs` is 0).",
        }
        return [sentence for stage, sentence in names.items() if stage not in own]

    def _training(self) -> Section:
        rounds = self._rounds()
        if not rounds:
            return Section(title="Training", texts=["No round of training: the shared part is as it began."])
        known = {c: t for c, t in _QUANTITIES.items() if any(row[c] is not None for row in rounds)}
        losses = [row["loss"] for row in rounds if row["loss"] is not None]
        fell = f" The loss went from {losses[0]:.4f} to {losses[-1]:.4f}." if losses else ""
        says = f"{_listed(known.values())} in each of {len(rounds)} rounds, by stage.{fell}"
        return Section(title="Training", chart=charts.curves(known, says))

    def _rounds(self) -> list[Row]:
        """Return the rounds in which the shared part was trained; finetuning comes by blocks of devices."""
        return [row for row in self.facts.rounds if row["work"] == "update"]

    def _changes(self) -> Iterator[Section]:
        yield self._parameters()
        gains = [row["gain"] for row in self.facts.devices if row["gain"] is not None]
        if not gains:
            yield Section(title="Devices", texts=[f"No device has a {self._metric} in two stages."])
            return
        titles = [model.title for model in self.facts.changed]
        better = sum(gain > 0 for gain in gains)
        yield _drawn(
            charts.scatter(
                self._gained,
                f"A point is a device: its change against its training examples, by split and model "
                f"({', '.join(titles)}). {better} of {len(gains)} points are above zero.",
                titles,
            )
        )
        if min(gains) < max(gains):
            says = f"How {self._gained} is spread over devices: from {min(gains):+.4f} to {max(gains):+.4f}."
            extent = (min(gains), max(gains))
            yield _drawn(charts.violins(self._gained, says, titles, extent=extent))
        else:
            same = f"Every device's change is {gains[0]:+.4f}: there is nothing to spread."
            yield Section(title="How the change is spread over devices", texts=[same])
        says = "The change of every device on test rows, the least first. One seed: there is no band."
        yield _drawn(charts.in_order(self._gained, says, titles))

    def _parameters(self) -> Section:
        points = self._points()
        title = "Change against personal parameters"
        if not points:
            return Section(title=title, texts=["No model has a part of its own on devices."])
        titles = [point["model"] for point in points]
        listed = "; ".join(f"{p['model']}: {p['kept']:,} numbers, {p['gain']:+.4f}" for p in points)
        return Section(title=title, chart=charts.parameters(self._gained, f"{listed}.", titles))

    def _points(self) -> list[Row]:
        first = self.facts.models[0].statistics["weighted_mean"]
        sign = {"up": 1.0, "down": -1.0}[self.facts.summary["direction"]]
        points = [
            {
                "model": model.title,
                "kept": kept_by(model),
                "gain": sign * (model.statistics["weighted_mean"] - first),
            }
            for model in self.facts.changed
        ]
        return [point for point in points if point["kept"]]

    def _sizes(self) -> Section:
        sizes = [row["examples"] for row in self._own_sizes()]
        if not sizes:
            return Section(title="Training examples of devices", texts=["No device was measured."])
        says = f"{len(sizes)} devices have from {min(sizes)} to {max(sizes)} training examples."
        return _drawn(charts.histogram(says))

    def _own_sizes(self) -> list[Row]:
        found = {row["device"]: row["examples"] for row in self.facts.devices if row["split"] == "train"}
        return [{"device": device, "examples": examples} for device, examples in found.items()]

    def _costs(self) -> Section:
        rows: list[list[Entry]] = []
        for stage in dict.fromkeys(row["stage"] for row in self.facts.rounds):
            own = [row for row in self.facts.rounds if row["stage"] == stage]
            sums = [sum(row[name] for row in own) for name in ("heard", "megabytes", "seconds")]
            rows.append([stage, len(own), sums[0], Rounded(sums[1]), Rounded(sums[2])])
        sheet = Sheet(
            name="traffic",
            title="Training by stage",
            columns=["stage", "rounds", "visits", "MB sent", "device-seconds"],
            rows=rows,
        )
        return Section(title="Traffic and memory", sheet=sheet if rows else None, texts=[self._memory()])

    def _memory(self) -> str:
        """Return what a device needs, where the config can be built here."""
        config = read_config(self.facts.folder / "config.toml")
        try:
            partitions = describe(config, self.facts.folder).partitions
        except ConfigError as error:
            return f"What a device needs to train cannot be said here: {error}"
        own = config.partition.personal
        costs = partitions[own if isinstance(own, str) else list(partitions)[-1]]
        memory = costs.get("memory_bytes")
        needs = f"{memory / 1e6:,.1f} MB of memory to train on one example" if memory else "memory unknown"
        return (
            f"A device keeps {costs.get('personal', 0):,} personal parameters of its own, sends "
            f"{costs.get('up_bytes', 0) / 1e6:,.2f} MB in a round of personalising, and needs {needs}."
        )

    def _data(self) -> dict[str, Sequence[Row]]:
        return {
            "devices": self.facts.devices,
            "rounds": self._rounds(),
            "models": self._points(),
            "sizes": self._own_sizes(),
        }


def gained_of(metric: str, direction: str) -> str:
    """Return what a change for the better is called.

    >>> gained_of("accuracy", "up"), gained_of("wer", "down")
    ('change in accuracy', 'decrease in wer')
    """
    return f"{'change' if direction == 'up' else 'decrease'} in {metric}"


def _listed(words: Iterable[str]) -> str:
    text = ", ".join(words)
    return text[:1].upper() + text[1:]


def _is_better(after: float, before: float, direction: str) -> bool | None:
    return None if after == before else (after > before) == (direction == "up")


def _drawn(chart: Any) -> Section:
    return Section(title=chart.title, chart=chart)
