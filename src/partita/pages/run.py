"""The page of one run."""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from partita.config.reading import read_config
from partita.describe import describe
from partita.errors import ConfigError
from partita.finished import is_finished
from partita.pages import charts
from partita.pages.facts import Facts, Row, facts_of, kept_by
from partita.pages.page import Page, Section, write_page
from partita.protocol import Stage
from partita.report.sheets import Entry, Rounded, Sheet
from partita.report.tables import bytes_text, models_sheet
from partita.report.troubles import troubles_of

_QUANTITIES = {
    "loss": "loss",
    "rate": "learning rate",
    "heard": "devices",
    "megabytes": "MB sent",
    "seconds": "seconds",
}
_FINETUNING = " Finetuning comes by blocks of devices and is not drawn."
_FEW = 5
"""Devices, of which a spread can be drawn."""


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
            split=self.facts.split,
            facts={
                "The command that makes it again": "partita run config.toml out=FOLDER",
                "Seed": str(values["seed"]),
                **values.get("made_with", {}),
            },
            config=text,
        )

    @property
    def _metric(self) -> str:
        return f"{self.facts.split} {self.facts.summary['metric']}"

    @property
    def _gained(self) -> str:
        return gained_of(self.facts.summary["metric"], self.facts.summary["direction"])

    def _answer(self) -> str:
        first, last = self.facts.first, self.facts.last
        if first is None:
            return f"No device has a {self._metric} of the pretrained model, so there is nothing to compare."
        before, devices = first.statistics["weighted_mean"], counted(first.statistics["devices"], "device")
        if last is None:
            had = f"{first.title} has a {self._metric} of {before:.4f} over {devices}"
            return f"Nothing was personalised: {had}."
        own = last.statistics
        change = self.facts.sign * (own["weighted_mean"] - before)
        verb = "left" if not change else "improved" if change > 0 else "worsened"
        what = "Personalization" if kept_by(last) else "More training, with nothing personal"
        moved = f"at {before:.4f}" if not change else f"from {before:.4f} to {own['weighted_mean']:.4f}"
        return (
            f"{what} ({last.title}) {verb} {self._metric} {moved} over {devices}: it helped {own['helped']}, "
            f"hurt {own['hurt']} and left {own['same']} as they were."
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
            Stage.PRETRAINED: "No device has the metric of the pretrained model.",
            Stage.PERSONALISED: "This run has no model of the stage `personalised`.",
            Stage.FINETUNED: "This run has no model of the stage `finetuned`.",
        }
        trained = {row["stage"] for row in self.facts.rounds}
        began = [] if "pretraining" in trained else ["Nothing was pretrained: the first row is the start."]
        return [*began, *(sentence for stage, sentence in names.items() if stage not in own)]

    def _training(self) -> Section:
        rounds = self._rounds()
        if not rounds:
            return Section(title="Training", texts=["No round of training: the shared part is as it began."])
        known = {c: t for c, t in _QUANTITIES.items() if any(row[c] is not None for row in rounds)}
        losses = [row["loss"] for row in rounds if row["loss"] is not None]
        fell = f" The loss went from {losses[0]:.4f} to {losses[-1]:.4f}." if losses else ""
        says = f"{_listed(known.values())} in each of {len(rounds)} rounds, by stage.{fell}{_FINETUNING}"
        return Section(title="Training", chart=charts.curves(known, says))

    def _rounds(self) -> list[Row]:
        """Return the rounds in which the shared part was trained; finetuning comes by blocks of devices."""
        return [row for row in self.facts.rounds if row["work"] == "update"]

    def _changes(self) -> Iterator[Section]:
        yield self._parameters()
        gains = [row["gain"] for row in self.facts.devices if row["gain"] is not None]
        if not gains:
            yield Section(title="Devices", texts=[f"No device has a {self._metric} of two models."])
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
        if min(gains) < max(gains) and self._judged() >= _FEW:
            says = f"How {self._gained} is spread over devices: from {min(gains):+.4f} to {max(gains):+.4f}."
            extent = (min(gains), max(gains))
            yield _drawn(charts.violins(self._gained, says, titles, extent=extent))
        else:
            few = f"The changes of {counted(self._judged(), 'device')} have no spread to draw."
            yield Section(title="How the change is spread over devices", texts=[few])
        says = f"The change of every device on {self.facts.split} rows, the least first. One seed: no band."
        yield _drawn(charts.in_order(self._gained, says, titles))

    def _judged(self) -> int:
        """Return how many devices have a change on the rows that models are judged by."""
        return len({row["device"] for row in self.facts.devices if row["rank"] is not None})

    def _parameters(self) -> Section:
        points = self._points()
        title = "Change against personal parameters"
        if not points:
            return Section(title=title, texts=["No model has a part of its own on devices."])
        titles = [point["model"] for point in points]
        listed = "; ".join(f"{p['model']}: {p['kept']:,} numbers, {p['gain']:+.4f}" for p in points)
        return Section(title=title, chart=charts.parameters(self._gained, f"{listed}.", titles))

    def _points(self) -> list[Row]:
        if self.facts.first is None:
            return []
        first = self.facts.first.statistics["weighted_mean"]
        points = [
            {
                "model": model.title,
                "kept": kept_by(model),
                "gain": self.facts.sign * (model.statistics["weighted_mean"] - first),
            }
            for model in self.facts.changed
        ]
        return [point for point in points if point["kept"]]

    def _sizes(self) -> Section:
        sizes = [row["examples"] for row in self._own_sizes()]
        if not sizes:
            return Section(title="Training examples of devices", texts=["No device was measured."])
        return _drawn(charts.histogram(sizes_of(sizes)))

    def _own_sizes(self) -> list[Row]:
        found = {row["device"]: row["examples"] for row in self.facts.devices if row["split"] == "train"}
        return [{"device": device, "examples": examples} for device, examples in found.items()]

    def _costs(self) -> Section:
        rows: list[list[Entry]] = []
        for stage in dict.fromkeys(row["stage"] for row in self.facts.rounds):
            own = [row for row in self.facts.rounds if row["stage"] == stage]
            sums = [sum(row[name] for row in own) for name in ("heard", "megabytes", "seconds")]
            rounds = len(own) if own[0]["work"] == "update" else None
            rows.append([stage, rounds, sums[0], Rounded(sums[1]), Rounded(sums[2])])
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
        needs = f", and needs {bytes_text(memory)} of memory to train on one example" if memory else ""
        return (
            f"A device keeps {counted(costs.get('personal', 0), 'personal parameter')} and sends "
            f"{bytes_text(costs.get('up_bytes', 0))} in a round of personalising{needs}."
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


def counted(number: int, thing: str) -> str:
    """Return a number of things.

    >>> counted(1, "device"), counted(1200, "device")
    ('1 device', '1,200 devices')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def sizes_of(sizes: Sequence[int]) -> str:
    """Return how many training examples devices have."""
    low, high = min(sizes), max(sizes)
    many = str(low) if low == high else f"from {low} to {high}"
    return f"{counted(len(sizes), 'device')}, with {many} training examples."


def _drawn(chart: charts.Chart) -> Section:
    return Section(title=chart.title, chart=chart)
