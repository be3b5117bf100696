"""Runs and comparisons in one form, so that their models can be put side by side."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.config.overrides import KEYS, TABLE
from partita.errors import ConfigError
from partita.protocol import DeviceId, Stage
from partita.report.models import EvaluatedModel, evaluated_models
from partita.report.run.data import training_rounds
from partita.report.tables.means import MetricsBySeed, mean_std
from partita.report.tables.models import cost_of, models_of
from partita.runs.folder import RunFolder
from partita.runs.warnings import warnings_of
from partita.studies.comparison import reopen
from partita.studies.folders import check_finished, is_comparison
from partita.studies.results import collect
from partita.studies.statistics import DeviceMetrics
from partita.tasks.metrics import Direction


@dataclass(frozen=True, kw_only=True)
class SourceModel:
    """A model of a run or a comparison."""

    title: str
    part: str
    """The personal part, where a comparison has several."""
    by_seed: MetricsBySeed
    rounds: float
    """Rounds that trained the shared part, averaged over seeds."""
    sent: float
    """Bytes sent to and received from all devices in training, averaged over seeds."""

    @property
    def name(self) -> str:
        """The title with the personal part."""
        return f"{self.title} ({self.part})" if self.part else self.title

    @property
    def mean(self) -> float:
        """The weighted mean over devices, averaged over seeds."""
        return mean_std(self.by_seed).mean

    @property
    def devices(self) -> frozenset[DeviceId]:
        """The devices that it has a metric on."""
        return frozenset(self.weights)

    @property
    def weights(self) -> dict[DeviceId, int]:
        """The weight of each device."""
        return {d: weight for values in self.by_seed.values() for d, (_, weight) in values.items()}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A finished run or a comparison, with its models."""

    name: str
    """The name on the page."""
    folder: RunFolder
    metric: str
    direction: Direction
    split: str
    models: Sequence[SourceModel]
    reference: SourceModel
    """The model that others are paired with: the last of a run, the baseline of a comparison."""
    data: Mapping[str, Any]
    """The settings and the digests that identify the data, by key."""
    examples: Mapping[DeviceId, int]
    """The number of training examples of each device."""
    notes: Sequence[str]
    """Sentences about what failed or is to be doubted."""

    @property
    def seeds(self) -> frozenset[int]:
        """The seeds of its models."""
        return frozenset(seed for model in self.models for seed in model.by_seed)


def names_of(folders: Sequence[Path]) -> list[str]:
    """Return the names of folders on the page; paths where two folders have the same name.

    Raises:
        ConfigError: a folder is given twice.
    """
    places = [folder.resolve() for folder in folders]
    if twice := [folder for folder in folders if places.count(folder.resolve()) > 1]:
        raise ConfigError(f"`{twice[0]}` is given twice: give each run or comparison once.")
    last = [place.name for place in places]
    return [str(folder) if last.count(name) > 1 else name for folder, name in zip(folders, last, strict=True)]


def read_source(folder: Path, name: str) -> Source:
    """Return the run or comparison in a folder.

    Raises:
        ConfigError: there is none, or it has no result.
    """
    run = RunFolder(folder)
    if not run.exists:
        raise ConfigError(f"`{folder}` is not the folder of a run or a comparison: it has no `config.toml`.")
    return _comparison(folder, name) if is_comparison(folder) else _run(run, name)


def _run(run: RunFolder, name: str) -> Source:
    check_finished(run)
    found = [(model, _metrics(model)) for model in evaluated_models(run)]
    models = [_model_of(run, model, metrics) for model, metrics in found if metrics]
    if not models:
        raise ConfigError(f"The run in `{run.path}` has no result: all of its stages failed.")
    own = [model for model, metrics in found if metrics and model.run is run and model.stage != Stage.SERVED]
    reference = next((m for m in models if own and m.title == own[-1].title), models[0])
    return Source(
        name=name,
        folder=run,
        metric=run.summary["metric"],
        direction=run.summary["direction"],
        split=run.summary.get("split", "test"),
        models=models,
        reference=reference,
        data=_data_of(run),
        examples=_examples([run]),
        notes=[f"{name}: {warning}." for warning in warnings_of(run)],
    )


def _metrics(model: EvaluatedModel) -> DeviceMetrics:
    rows = model.run.devices.select(["stage", "device", "split", "metric", "weight"]).to_pylist()
    place = model.stage, model.run.summary.get("split", "test")
    own = [row for row in rows if (row["stage"], row["split"]) == place and row["metric"] is not None]
    return {row["device"]: (row["metric"], row["weight"]) for row in own}


def _model_of(run: RunFolder, model: EvaluatedModel, metrics: DeviceMetrics) -> SourceModel:
    lines = list(_lines(run, model))
    return SourceModel(
        title=model.title,
        part="",
        by_seed={run.values["seed"]: metrics},
        rounds=sum(line["work"] == "update" for line in lines),
        sent=sum(sum(line["bytes"].values()) for line in lines),
    )


def _lines(run: RunFolder, model: EvaluatedModel) -> Iterator[Mapping[str, Any]]:
    """Yield the training rounds behind a model; the baseline inside a run continues its pretraining."""
    order = list(Stage)
    for line in training_rounds(model.run):
        if order.index(Stage(line["stage"])) <= order.index(model.stage):
            yield line
    if model.run is not run:
        yield from (line for line in training_rounds(run) if line["stage"] == Stage.PRETRAINED)


def _comparison(folder: Path, name: str) -> Source:
    comparison = reopen(folder)
    results = collect(comparison, comparison.failed())
    runs = [run for own in results.runs.values() for run in own.values()]
    models = [
        SourceModel(
            title=model.title,
            part=model.variant[1],
            by_seed=model.by_seed,
            rounds=cost_of(results, model.variant, "rounds"),
            sent=cost_of(results, model.variant, "sent"),
        )
        for model in models_of(results)
    ]
    baseline = results.titles[results.baseline]
    return Source(
        name=name,
        folder=RunFolder(folder),
        metric=results.metric,
        direction=results.direction,
        split=results.split,
        models=models,
        reference=next((model for model in models if model.title == baseline), models[0]),
        data=_data_of(runs[0]),
        examples=_examples(runs),
        notes=[f"{name}: {note}" for note in results.notes],
    )


def _data_of(run: RunFolder) -> dict[str, Any]:
    """Return what identifies the data of a run: the task's settings, and digests in place of file names."""
    digests = {key: text for key, text in run.values["made_with"].items() if key in KEYS}
    settings = {f"task.{key}": value for key, value in run.values["task"].items()}
    known = {key: json.dumps(value, sort_keys=True) for key, value in settings.items() if key not in KEYS}
    return known | {key: text for key, text in digests.items() if key == TABLE}


def _examples(runs: Iterable[RunFolder]) -> dict[DeviceId, int]:
    found: dict[DeviceId, int] = {}
    for run in runs:
        rows = run.devices.select(["device", "split", "examples"]).to_pylist()
        found |= {row["device"]: row["examples"] for row in rows if row["split"] == "train"}
    return found
