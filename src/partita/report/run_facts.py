"""What a finished run says of every device, put side by side: each model, each split, the change it made."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partita.config.methods import NAMED, SERVERS
from partita.config.reading import read_config
from partita.config.schema import Config
from partita.data.arrow import read_table
from partita.progress.display import DOING
from partita.protocol import DeviceId, Stage
from partita.runs.folder import RunFolder
from partita.training.evaluation import Summary

Row = dict[str, Any]


@dataclass(frozen=True)
class Tested:
    """A model that a run has tested on its devices."""

    title: str
    folder: Path
    """The run's folder that it is of: the baseline's is inside the run's own."""
    stage: Stage
    statistics: Mapping[str, Any]
    """What `summary.json` says of it."""


def tested_in(folder: Path) -> list[Tested]:
    """Return the models that the finished run in a folder has tested, its baseline's too."""
    config = read_config(RunFolder(folder).config_file)
    names = _titles(config)
    found = [
        Tested(names[Stage(stage)], folder, Stage(stage), statistics)
        for stage, statistics in RunFolder(folder).summary["stages"].items()
    ]
    inner = RunFolder(folder).baseline
    if config.finetune.baseline and inner is not None:
        finetuned = inner.summary["stages"].get(Stage.FINETUNED)
        found[1:1] = [Tested("Finetune", inner.path, Stage.FINETUNED, finetuned)] if finetuned else []
    return found


def _titles(config: Config) -> dict[Stage, str]:
    """Return what tables call the models of a run's stages."""
    named = NAMED.get(config.personalize.method)
    method = named.title if named else config.personalize.method.partition(":")[2]
    alone = "Finetune" if config.partition.personal == "full" else "FT (part.)"
    if named and "personalize.rounds" in named.fixed:
        alone = method
    return {
        Stage.PRETRAINED: SERVERS[config.pretrain.server_optimizer] if config.pretrain.rounds else "Start",
        Stage.PERSONALISED: method,
        Stage.FINETUNED: f"{method}, finetuned" if config.personalize.rounds else alone,
        Stage.SERVED: "the better on validation",
    }


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that a page shows of a run."""

    folder: Path
    config: Config
    summary: Summary
    models: Sequence[Tested]
    """In the order of stages; none where no device has the metric."""
    devices: Sequence[Row]
    """A row a model, device and split: the metric, its change against the pretrained model, examples."""
    rounds: Sequence[Row]
    """A row a round of training; finetuning is a row a block of devices."""
    visits: Sequence[Row]
    """A row a device and stage: how often it was asked to train, and heard of, and why not."""

    @property
    def first(self) -> Tested | None:
        """The pretrained model, which others are compared with, where it was measured."""
        return next((model for model in self.models if model.stage == Stage.PRETRAINED), None)

    @property
    def last(self) -> Tested | None:
        """The model that the run ends with, where it did more than pretrain."""
        own = [model for model in self.changed if model.folder == self.folder]
        return own[-1] if own else None

    @property
    def changed(self) -> list[Tested]:
        """The models that differ from the pretrained one."""
        return [model for model in self.models if model.stage != Stage.PRETRAINED]

    @property
    def is_personal(self) -> bool:
        """Whether devices have a part of the model of their own; a method may let them keep other things."""
        return self.config.partition.personal not in ("none", [])

    @property
    def split(self) -> str:
        """The rows that models are judged by."""
        return self.summary.get("split", "test")

    @property
    def sign(self) -> float:
        """What makes a change for the better positive."""
        return {"up": 1.0, "down": -1.0}[self.summary["direction"]]


def facts_of(folder: Path) -> Facts:
    """Return what the finished run in a folder says."""
    lines = training_of(folder)
    facts = Facts(
        folder=folder,
        config=read_config(folder / "config.toml"),
        summary=RunFolder(folder).summary,
        models=tested_in(folder),
        devices=(),
        rounds=[_round(at, line) for at, line in enumerate(lines, start=1)],
        visits=_visits(lines),
    )
    return replace(facts, devices=ranked(_compared(facts), facts.split))


def _measured(model: Tested) -> dict[tuple[DeviceId, str], Row]:
    """Return what a model's devices measured, by device and split."""
    rows = read_table(model.folder / "devices.parquet").to_pylist()
    return {(row["device"], row["split"]): row for row in rows if row["stage"] == model.stage}


def _compared(facts: Facts) -> Iterable[Row]:
    before = _measured(facts.first) if facts.first else {}
    for model in facts.models:
        rows = _measured(model)
        for (device, split), row in rows.items():
            start = before.get((device, split)) if model is not facts.first else None
            yield {
                "device": device,
                "model": model.title,
                "method": model.title,
                "split": split,
                "examples": rows.get((device, "train"), row)["examples"],
                "metric": row["metric"],
                "loss": row["loss"],
                "reason": row["reason"],
                **dict.fromkeys(("gain", "low", "high"), _gain(row, start, facts.sign)),
            }


def ranked(rows: Iterable[Row], split: str) -> list[Row]:
    """Return rows with their rank by change among their model's on one split."""
    found = [{**row, "rank": None} for row in rows]
    own: dict[str, list[Row]] = {}
    for row in found:
        if row["split"] == split and row["gain"] is not None:
            own.setdefault(row["model"], []).append(row)
    for model in own.values():
        for rank, row in enumerate(sorted(model, key=lambda row: row["gain"]), start=1):
            row["rank"] = rank
    return found


def _gain(row: Row, before: Row | None, sign: float) -> float | None:
    if before is None or before["metric"] is None or row["metric"] is None:
        return None
    return sign * (row["metric"] - before["metric"])


def training_of(folder: Path) -> list[Row]:
    """Return what a run's journal says of training."""
    return [dict(line) for line in RunFolder(folder).rounds() if line["work"] != "evaluate"]


def _visits(lines: Iterable[Row]) -> list[Row]:
    found: dict[tuple[DeviceId, Stage], Row] = {}
    for line in lines:
        for device in line["asked"]:
            start = {"device": device, "stage": DOING[line["stage"]], "asked": 0, "heard": 0, "failed": None}
            visits = found.setdefault((device, line["stage"]), start)
            visits["asked"] += 1
            visits["heard"] += device in line["heard"]
            visits["failed"] = line["failed"].get(device, visits["failed"])
    return list(found.values())


def _round(at: int, line: Mapping[str, Any]) -> Row:
    return {
        "at": at,
        "stage": DOING[Stage(line["stage"])],
        "work": line["work"],
        "round": line["round"] + 1,
        "loss": line["loss"],
        "shared": line["shared_lr"],
        "personal": line["personal_lr"],
        "heard": len(line["heard"]),
        "megabytes": sum(line["bytes"].values()) / 1e6,
        "seconds": line["seconds"],
    }


def kept_by(model: Tested) -> int:
    """Return how many numbers a device keeps for a model of its own; the pretrained one needs none."""
    return RunFolder(model.folder).kept_parameters if model.stage != Stage.PRETRAINED else 0
