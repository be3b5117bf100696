"""The page of one run."""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from partita.durable import locked
from partita.errors import ConfigError
from partita.protocol import Stage
from partita.report import charts
from partita.report.page import Page, Section, write_page
from partita.report.run_facts import Facts, Row, facts_of, kept_by
from partita.report.sections import counted, drawn, gained_of, made_by, readable, scattered, sizes_of, spread
from partita.report.sheets import Entry, Rounded, Sheet
from partita.report.tables import bytes_text, models_sheet
from partita.report.troubles import troubles_of
from partita.runs.folder import RunFolder
from partita.studies.describe import describe

_QUANTITIES = {
    "loss": "loss",
    "shared": "shared rate",
    "personal": "personal rate",
    "heard": "devices",
    "megabytes": "MB both ways",
    "seconds": "seconds",
}


def write_run_page(folder: Path) -> Path:
    """Write the page of the finished run in a folder, with figures and tables; return the page's path.

    Raises:
        ConfigError: there is no finished run in it, or its files are damaged.
    """
    if not RunFolder(folder).is_finished:
        raise ConfigError(f"`{folder}` holds no finished run: go on with `partita run --resume {folder}`.")
    with locked(folder, wait=True):
        with readable(folder):
            facts = facts_of(folder)
        return write_page(_Reader(facts).page(), folder)


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
            facts=made_by(values, "partita run config.toml out=FOLDER") | {"Seed": str(values["seed"])},
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
        what = "Personalization" if self.facts.is_personal else "More training, with nothing personal"
        moved = f"at {before:.4f}" if not change else f"from {before:.4f} to {own['weighted_mean']:.4f}"
        return (
            f"{what} ({last.title}) {verb} {self._metric} {moved} over {devices}: it helped {own['helped']}, "
            f"hurt {own['hurt']} and left {own['same']} unchanged."
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
        rest = " Finetuning comes by blocks of devices and is not drawn."
        finetuned = rest if any(row["work"] == "finetune" for row in self.facts.rounds) else ""
        says = f"{_listed(known.values())} in each of {len(rounds)} rounds, by stage.{fell}{finetuned}"
        return Section(title="Training", chart=charts.curves(known, says))

    def _rounds(self) -> list[Row]:
        """Return the rounds in which the shared part was trained; finetuning comes by blocks of devices."""
        return [row for row in self.facts.rounds if row["work"] == "update"]

    def _changes(self) -> Iterator[Section]:
        yield self._parameters()
        gains = [row["gain"] for row in self.facts.devices if row["gain"] is not None]
        titles = [model.title for model in self.facts.changed]
        if not gains:
            yield Section(title="Devices", texts=[f"No device has a {self._metric} of two models."])
        elif not any(gains):
            yield Section(title="Devices", texts=["No model changed any device's metric: nothing to draw."])
        else:
            says = self._above(self.facts.last.title if self.facts.last else titles[-1])
            yield scattered(
                self.facts.devices,
                charts.scatter(self._gained, says, charts.Key(methods=titles, shown=titles)),
            )
            yield spread(self.facts.devices, self._gained, titles)
            says = (
                f"The change of every device on {self.facts.split} rows, the least first. One seed: no band."
            )
            yield drawn(charts.in_order(self._gained, says, titles, has_band=False))

    def _above(self, title: str) -> str:
        """Return what a point of the scatter is, and how many devices a model helps."""
        ranked = [r for r in self.facts.devices if r["model"] == title and r["rank"] is not None]
        better = sum(row["gain"] > 0 for row in ranked)
        return (
            "A point is a device under a model: its change against its training examples. "
            f"On {self.facts.split} rows, {better} of {len(ranked)} are above zero under {title}."
        )

    def _parameters(self) -> Section:
        points = self._points()
        title = "Change against personal parameters"
        if not points:
            return Section(title=title, texts=["No model has a part of its own on devices."])
        titles = [model.title for model in self.facts.changed]
        listed = "; ".join(f"{p['model']}: {p['kept']:,} numbers, {p['gain']:+.4f}" for p in points)
        key = charts.Key(methods=titles, shown=[point["model"] for point in points])
        return Section(title=title, chart=charts.parameters(self._gained, f"{listed}.", key))

    def _points(self) -> list[Row]:
        if self.facts.first is None or not self.facts.is_personal:
            return []
        first = self.facts.first.statistics["weighted_mean"]
        points = [
            {
                "model": model.title,
                "method": model.title,
                "kept": kept_by(model),
                "gain": self.facts.sign * (model.statistics["weighted_mean"] - first),
            }
            for model in self.facts.changed
        ]
        return [point for point in points if point["kept"]]

    def _sizes(self) -> Section:
        return sizes_of([row["examples"] for row in self._own_sizes()])

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
            columns=["stage", "rounds", "visits", "MB both ways", "device-seconds"],
            rows=rows,
        )
        return Section(title="Traffic and memory", sheet=sheet if rows else None, texts=[self._memory()])

    def _memory(self) -> str:
        """Return what a device needs, where the config can be built here."""
        config = self.facts.config
        try:
            partitions = describe(config, self.facts.folder).partitions
        except ConfigError as error:
            return f"What a device needs to train cannot be said here: {error}"
        own = config.partition.personal
        costs = partitions[own if isinstance(own, str) else list(partitions)[-1]]
        says = [f"keeps {counted(costs.get('personal', 0), 'personal parameter')}"]
        if config.personalize.rounds:
            says.append(f"sends {bytes_text(costs.get('up_bytes', 0))} in a round of personalizing")
        if costs.get("memory_bytes"):
            says.append(f"needs {bytes_text(costs['memory_bytes'])} of memory to train on one example")
        return f"A device {', and '.join(says)}."

    def _data(self) -> dict[str, Sequence[Row]]:
        return {
            "devices": self.facts.devices,
            "rounds": self._rounds(),
            "models": self._points(),
            "sizes": self._own_sizes(),
            "visits": self.facts.visits,
        }


def _listed(words: Iterable[str]) -> str:
    text = ", ".join(words)
    return text[:1].upper() + text[1:]
