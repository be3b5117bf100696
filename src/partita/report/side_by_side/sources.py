"""Runs and comparisons in one form, so that their models can be put side by side."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.config.changes import dotted
from partita.config.overrides import KEYS, TABLE
from partita.config.reading import to_values
from partita.data.arrow import rows_where, tuples_of
from partita.errors import ConfigError
from partita.protocol import DeviceId, Stage
from partita.report.differences import MetricsBySeed
from partita.report.models import EvaluatedModel, evaluated_models
from partita.report.run.data import training_rounds
from partita.report.tables.models import models_of
from partita.runs.folder import RunFolder
from partita.runs.warnings import warnings_of
from partita.shown import shown
from partita.studies.cells import base_of
from partita.studies.comparison import Comparison, reopen
from partita.studies.folders import check_finished, is_comparison
from partita.studies.results import collect
from partita.studies.statistics import DeviceMetrics
from partita.tasks.metrics import Direction

_VOCABULARY = "task.vocabulary"
"""The key of the words that a task of texts counts."""
_VARIED = ("personalize.method", "partition.personal")
"""Settings in which the runs of a comparison differ."""


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
        return shown(f"{self.title} ({self.part})" if self.part else self.title)

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
    reference_is: str
    """The reason why it is the reference, in words."""
    data: Mapping[str, Any]
    """The settings and the digests that identify the data, by key."""
    settings: Mapping[str, Any]
    """The settings by dotted key, with defaults; of a comparison, those that its runs share."""
    examples: Mapping[DeviceId, int]
    """The number of training examples of each device."""
    notes: Sequence[str]
    """Sentences about what failed or is to be doubted."""

    @property
    def seeds(self) -> frozenset[int]:
        """The seeds of its models."""
        return frozenset(seed for model in self.models for seed in model.by_seed)

    @property
    def devices(self) -> frozenset[DeviceId]:
        """The devices of its models."""
        return frozenset(device for model in self.models for device in model.devices)


def names_of(folders: Sequence[Path]) -> list[str]:
    """Return the names of folders on the page; paths where two folders have the same name.

    Raises:
        ConfigError: a folder is given twice.
    """
    places = [folder.resolve() for folder in folders]
    if twice := [folder for folder in folders if places.count(folder.resolve()) > 1]:
        raise ConfigError(f"`{twice[0]}` is given twice: give each run or comparison once.")
    last = [place.name for place in places]
    return [
        shown(str(folder) if last.count(name) > 1 else name)
        for folder, name in zip(folders, last, strict=True)
    ]


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
        reference_is="the last model of the first run",
        data=_data_of(run),
        settings=dotted(run.values),
        examples=_examples([run]),
        notes=[f"{name}: {warning}." for warning in warnings_of(run)],
    )


def _metrics(model: EvaluatedModel) -> DeviceMetrics:
    rows = tuples_of(model.run.devices, "stage", "split", "device", "metric", "weight")
    place = model.stage, model.run.summary.get("split", "test")
    return {
        device: (metric, weight)
        for stage, split, device, metric, weight in rows
        if (stage, split) == place and metric is not None
    }


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
            rounds=model.rounds,
            sent=model.sent,
        )
        for model in models_of(results)
    ]
    baseline = [model for model in models if model.title == results.titles[results.baseline]]
    return Source(
        name=name,
        folder=RunFolder(folder),
        metric=results.metric,
        direction=results.direction,
        split=results.split,
        models=models,
        reference=[*baseline, *models][0],
        reference_is=f"the {'baseline' if baseline else 'first model'} of the first comparison",
        data=_data_of(runs[0]),
        settings=_settings_of(comparison),
        examples=_examples(run.reopened() for run in runs),
        notes=[f"{name}: {note}" for note in results.notes],
    )


def _settings_of(comparison: Comparison) -> dict[str, Any]:
    """Return the settings that the runs of a comparison share: each has a method and a part of its own."""
    settings = dotted(to_values(base_of(comparison.values)))
    return {key: value for key, value in settings.items() if key not in _VARIED}


def _data_of(run: RunFolder) -> dict[str, Any]:
    """Return what identifies the data of a run: the task's settings, and digests in place of file names.

    The words of a vocabulary are part of the data: others are not counted.
    """
    settings = {f"task.{key}": value for key, value in run.values["task"].items()}
    known = {key: json.dumps(value, sort_keys=True) for key, value in settings.items() if key not in KEYS}
    if words := run.derived.get("vocabulary"):
        known[_VOCABULARY] = f"sha256 {hashlib.sha256(json.dumps(words).encode()).hexdigest()}"
    digests = run.values["made_with"]
    return known | ({TABLE: digests[TABLE]} if TABLE in digests else {})


def _examples(runs: Iterable[RunFolder]) -> dict[DeviceId, int]:
    found: dict[DeviceId, int] = {}
    for run in runs:
        found.update(tuples_of(rows_where(run.devices, "split", value="train"), "device", "examples"))
    return found
