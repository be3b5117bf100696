"""The data of a run's report: every model on every device, the rounds, and each device's visits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from partita.progress.display import ACTIVITIES
from partita.protocol import DeviceId, Stage
from partita.report.differences import Difference, difference
from partita.report.figures import Datum
from partita.report.models import EvaluatedModel, evaluated_models
from partita.runs.folder import RunFolder
from partita.studies.statistics import DeviceMetrics

Place = tuple[DeviceId, str]
"""A device and a split."""


@dataclass(frozen=True, kw_only=True)
class RunData:
    """All data that a run's page shows, read from its folder."""

    run: RunFolder
    models: Sequence[EvaluatedModel]
    """In the order of stages; without the stages in which no device has the metric."""
    devices: Sequence[Datum] = ()
    """One datum for each model, device and split: the metric, its change and the training examples."""
    unseen: Sequence[Datum] = ()
    """The same as `devices`, of the devices that training has not seen."""
    rounds: Sequence[Datum]
    """One datum for each training round; for fine-tuning, for each block of devices."""
    visits: Sequence[Datum]
    """One datum for each device and stage: how often it was asked to train, replied and failed."""

    @property
    def first(self) -> EvaluatedModel | None:
        """The pretrained model, the reference for every change; None if it has no metric."""
        return next((model for model in self.models if model.stage == Stage.PRETRAINED), None)

    @property
    def last(self) -> EvaluatedModel | None:
        """The run's final model, None if the run has only pretrained."""
        own = [model for model in self.changed if model.run is self.run]
        return own[-1] if own else None

    @property
    def changed(self) -> list[EvaluatedModel]:
        """All models but the pretrained one."""
        return [model for model in self.models if model.stage != Stage.PRETRAINED]

    @property
    def is_personal(self) -> bool:
        """Whether devices have a personal part; a method may let them keep other values without one."""
        return self.run.values["partition"]["personal"] not in ("none", [])

    @property
    def split(self) -> str:
        """The split that the metric is reported on."""
        return self.run.summary.get("split", "test")

    @property
    def sign(self) -> float:
        """The factor that makes an improvement of the metric positive."""
        return {"up": 1.0, "down": -1.0}[self.run.summary["direction"]]

    def metrics_of(self, model: EvaluatedModel) -> DeviceMetrics:
        """Return the metric and its weight of each device that has one, on the split that is reported."""
        return {
            device: (row["metric"], row["weight"])
            for (device, split), row in _measurements(model).items()
            if split == self.split and row["metric"] is not None
        }

    def count_examples(self, model: EvaluatedModel, *, seen: bool) -> int:
        """Return the number of examples behind a model's metric, on the split that is reported."""
        return sum(
            row["examples"]
            for (_, split), row in _measurements(model, seen=seen).items()
            if split == self.split and row["metric"] is not None
        )

    def difference(self, model: EvaluatedModel, other: EvaluatedModel) -> Difference | None:
        """Return the paired difference of two models; None without a device that has both."""
        own, others = ({0: self.metrics_of(one)} for one in (model, other))
        return difference(own, others, self.run.summary["direction"])

    @property
    def training_examples(self) -> dict[DeviceId, int]:
        """The number of training examples of each device."""
        return {datum["device"]: datum["examples"] for datum in self.devices if datum["split"] == "train"}


def read_run(run: RunFolder) -> RunData:
    """Return the data of a finished run."""
    lines = training_rounds(run)
    data = RunData(
        run=run,
        models=evaluated_models(run),
        rounds=[_round(number, line) for number, line in enumerate(lines, start=1)],
        visits=visits_of([*lines, *(line for line in run.onboarding() if line["work"] != "evaluate")]),
    )
    changes = {seen: ranked(_changes(data, seen=seen), data.split) for seen in (True, False)}
    return replace(data, devices=changes[True], unseen=changes[False])


def training_rounds(run: RunFolder) -> list[Mapping[str, Any]]:
    """Return the lines of `rounds.jsonl` that are not evaluations."""
    return [line for line in run.rounds() if line["work"] != "evaluate"]


def _round(number: int, line: Mapping[str, Any]) -> Datum:
    return {
        "number": number,
        "stage": ACTIVITIES[Stage(line["stage"])],
        "work": line["work"],
        "round": line["round"] + 1,
        "loss": line["loss"],
        "shared_lr": line["shared_lr"],
        "personal_lr": line["personal_lr"],
        "devices": len(line["heard"]),
        "megabytes": sum(line["bytes"].values()) / 1e6,
        "seconds": line["seconds"],
    }


def visits_of(lines: Iterable[Mapping[str, Any]]) -> list[Datum]:
    """Return how often each device was asked to train in each stage, and how often it replied."""
    found: dict[tuple[DeviceId, str], Datum] = {}
    for line in lines:
        stage = ACTIVITIES[Stage(line["stage"])]
        for device in line["asked"]:
            new = {"device": device, "stage": stage, "asked": 0, "replied": 0, "failed": None}
            visits = found.setdefault((device, stage), new)
            visits["asked"] += 1
            visits["replied"] += device in line["heard"]
            visits["failed"] = line["failed"].get(device, visits["failed"])
            if device in line.get("left_out", ()):
                visits["left_out"] = visits.get("left_out", 0) + 1
    return list(found.values())


def _changes(data: RunData, *, seen: bool) -> Iterable[Datum]:
    """Yield a datum for each model, device and split, with the change from the pretrained model."""
    before = _measurements(data.first, seen=seen) if data.first else {}
    for model in data.models:
        rows = _measurements(model, seen=seen)
        for (device, split), row in rows.items():
            start = before.get((device, split)) if model is not data.first else None
            yield {
                "device": device,
                "model": model.title,
                "method": model.title,
                "split": split,
                "examples": rows.get((device, "train"), row)["examples"],
                "metric": row["metric"],
                "loss": row["loss"],
                "reason": row["reason"],
                **dict.fromkeys(("change", "low", "high"), _change(row, start, data.sign)),
            }


def _measurements(model: EvaluatedModel, *, seen: bool = True) -> dict[Place, Datum]:
    """Return the rows of `devices.parquet` for a model, by device and split."""
    rows = (model.run.devices if seen else model.run.unseen).to_pylist()
    return {(row["device"], row["split"]): row for row in rows if row["stage"] == model.stage}


def _change(row: Datum, before: Datum | None, sign: float) -> float | None:
    if before is None or before["metric"] is None or row["metric"] is None:
        return None
    return sign * (row["metric"] - before["metric"])


def ranked(data: Iterable[Datum], split: str) -> list[Datum]:
    """Return the data with each device's rank by change, on one split, within its model."""
    found = [{**datum, "rank": None} for datum in data]
    by_model: dict[str, list[Datum]] = {}
    for datum in found:
        if datum["split"] == split and datum["change"] is not None:
            by_model.setdefault(datum["model"], []).append(datum)
    for own in by_model.values():
        for rank, datum in enumerate(sorted(own, key=lambda datum: datum["change"]), start=1):
            datum["rank"] = rank
    return found
