"""The data of a run's report: every model on every device, the rounds, and each device's visits."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from partita.data.arrow import Table, rows_of, rows_where, tuples_of
from partita.progress.display import ACTIVITIES
from partita.protocol import DeviceId, Stage
from partita.report.differences import Changes, Difference, changes_between, difference
from partita.report.figures import Datum
from partita.report.models import EvaluatedModel, evaluated_models
from partita.report.sample import ALL, Sample, ids_in, sample_among
from partita.report.sections import examples_in
from partita.runs.folder import RunFolder
from partita.runs.onboarded import OnboardedRun
from partita.shown import shown_id
from partita.studies.statistics import DeviceMetrics

Place = tuple[DeviceId, str]
"""A device and a split."""


@dataclass(frozen=True, kw_only=True)
class RunData:
    """All data that a run's page shows, read from its folder."""

    run: RunFolder
    models: Sequence[EvaluatedModel]
    """In the order of stages; without the stages in which no device has the metric."""
    sample: Sample = ALL
    """The devices that training has seen and that are drawn."""
    devices: Sequence[Datum] = ()
    """One datum for each model, drawn device and split: the metric, its change and the training examples."""
    unseen: Sequence[Datum] = ()
    """The same as `devices`, of the devices that training has not seen; of many, also a sample."""
    onboarded: Sequence[Datum] = ()
    """The same, of the devices that have joined the run since, as each joined."""
    rounds: Sequence[Datum]
    """One datum for each training round; for fine-tuning, for each block of devices."""
    visits: Sequence[Datum]
    """One datum for each drawn device and stage: how often it was asked to train, replied and failed."""

    @cached_property
    def known(self) -> OnboardedRun:
        """The run with the devices that have joined it."""
        return OnboardedRun(self.run)

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
            device: (metric, weight)
            for device, metric, weight in tuples_of(self._reported(model), "device", "metric", "weight")
            if metric is not None
        }

    def changes_of(self, model: EvaluatedModel) -> Changes:
        """Return the change from the pretrained model of each device that has both metrics."""
        own, other = self.metrics_of(model), self.metrics_of(self.first) if self.first else {}
        return changes_between({0: own}, {0: other}, self.run.summary["direction"])

    def count_examples(self, model: EvaluatedModel, *, seen: bool) -> int:
        """Return the number of examples behind a model's metric, on the split that is reported."""
        rows = tuples_of(self._reported(model, seen=seen), "examples", "metric")
        return sum(examples for examples, metric in rows if metric is not None)

    def _reported(self, model: EvaluatedModel, *, seen: bool = True) -> Table:
        """Return the rows of a model on the split that is reported."""
        return rows_where(_rows(model, seen=seen), "split", value=self.split)

    def difference(self, model: EvaluatedModel, other: EvaluatedModel) -> Difference | None:
        """Return the paired difference of two models; None without a device that has both."""
        own, others = ({0: self.metrics_of(one)} for one in (model, other))
        return difference(own, others, self.run.summary["direction"])

    @property
    def training_examples(self) -> list[int]:
        """The number of training examples of each device."""
        return examples_in(self.run.devices, "train")


def read_run(run: RunFolder) -> RunData:
    """Return the data of a finished run."""
    seen, unseen = (sample_among(ids_in([table])) for table in (run.devices, run.unseen))
    onboarding = (line for line in run.onboarding() if line["work"] != "evaluate")
    data = RunData(
        run=run,
        models=evaluated_models(run),
        sample=seen,
        rounds=[_round(number, line) for number, line in enumerate(training_rounds(run), start=1)],
        visits=[*visits_of(training_rounds(run), seen), *visits_of(onboarding, unseen)],
    )
    changes = _changes(data, seen, seen=True), _changes(data, unseen, seen=False)
    devices, others = (ranked(own, data.split) for own in changes)
    return replace(data, devices=devices, unseen=others, onboarded=ranked(_onboarded(data), data.split))


def _onboarded(data: RunData) -> Iterator[Datum]:
    """Yield a datum for each model, device that has joined and split; of many devices, of a sample."""
    sample = sample_among(data.known.joined)
    for each in data.known.onboardings:
        if not each.is_again:
            own = replace(data, run=each.folder, models=evaluated_models(each.folder))
            yield from _changes(own, sample, seen=False)


def training_rounds(run: RunFolder) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of `rounds.jsonl` that are not evaluations."""
    return (line for line in run.rounds() if line["work"] != "evaluate")


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


def visits_of(lines: Iterable[Mapping[str, Any]], sample: Sample = ALL) -> list[Datum]:
    """Return how often each drawn device was asked to train in each stage, and how often it replied."""
    found: dict[tuple[DeviceId, str], Datum] = {}
    for line in lines:
        stage = ACTIVITIES[Stage(line["stage"])]
        heard = frozenset(line["heard"])
        for device in filter(sample.__contains__, line["asked"]):
            new = {"device": shown_id(device), "stage": stage, "asked": 0, "replied": 0, "failed": None}
            visits = found.setdefault((device, stage), new)
            visits["asked"] += 1
            visits["replied"] += device in heard
            visits["failed"] = line["failed"].get(device, visits["failed"])
            if device in line.get("left_out", ()):
                visits["left_out"] = visits.get("left_out", 0) + 1
    return list(found.values())


def _changes(data: RunData, sample: Sample, *, seen: bool) -> Iterable[Datum]:
    """Yield a datum for each model, drawn device and split, with the change from the pretrained model."""
    before = _measurements(data.first, sample, seen=seen) if data.first else {}
    for model in data.models:
        rows = _measurements(model, sample, seen=seen)
        for (device, split), row in rows.items():
            start = before.get((device, split)) if model is not data.first else None
            yield {
                "device": shown_id(device),
                "model": model.title,
                "method": model.title,
                "split": split,
                "examples": rows.get((device, "train"), row)["examples"],
                "metric": row["metric"],
                "loss": row["loss"],
                "reason": row["reason"],
                **dict.fromkeys(("change", "low", "high"), _change(row, start, data.sign)),
            }


def _measurements(model: EvaluatedModel, sample: Sample, *, seen: bool) -> dict[Place, Datum]:
    """Return the rows of `devices.parquet` for a model on the drawn devices, by device and split."""
    rows = rows_of(sample.rows_of(_rows(model, seen=seen)))
    return {(row["device"], row["split"]): row for row in rows}


def _rows(model: EvaluatedModel, *, seen: bool) -> Table:
    """Return the rows of `devices.parquet` for a model."""
    return rows_where(model.run.devices if seen else model.run.unseen, "stage", value=str(model.stage))


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
