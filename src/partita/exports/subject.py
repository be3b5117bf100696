"""One device's served model, with everything that is said about it where it goes."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torch import nn

from partita.data.arrow import RowsBy
from partita.data.examples import Examples
from partita.errors import ConfigError
from partita.exports.models import Models
from partita.exports.opening import origin_of
from partita.exports.samples import Inputs, rows_for_checks, sample_inputs, shapes_of_inputs
from partita.methods.declared import declared
from partita.partition import Personalization
from partita.protocol import DeviceId, Stage
from partita.runs.folder import RunFolder
from partita.runs.onboarded import OnboardedRun
from partita.tasks.task import Task
from partita.training.evaluation import MODEL_OF, DeviceRow, is_failed, last_stage

_VERSIONS = ("partita", "torch", "python")
"""The versions that a run was made with and that matter for its models."""


@dataclass(frozen=True)
class Subject:
    """A device's served model, which is to leave the run."""

    run: "ServedRun"
    device: DeviceId
    which: Literal["personal", "global"]
    """Whether it is the device's own model or the global one."""

    @cached_property
    def model(self) -> nn.Module:
        """The model, in eval mode."""
        return self.run.models.model(self.device, self.which)

    @cached_property
    def predictor(self) -> nn.Module:
        """The module that predicts for the device: the model, unless its method declares another one."""
        return self.run.models.predictor(self.device, self.which, self.run.task_of)

    @property
    def needs_examples(self) -> bool:
        """Whether the device predicts with its own training examples besides the model."""
        local = self.run.models.origin.local
        return self.which == "personal" and local is not None and declared(local, "predicts") is not None

    @property
    def personalization(self) -> Personalization | None:
        """How the model is split, None for the global one."""
        return None if self.which == "global" else self.run.models.personalization(self.device)

    @property
    def task(self) -> Task:
        """The task with the device's own rows."""
        return self.run.task_of(self.device)

    @cached_property
    def examples(self) -> Examples:
        """Examples of the device to try the model on."""
        return rows_for_checks(self.task, self.device)

    @cached_property
    def samples(self) -> Sequence[Inputs]:
        """Arguments of the model for a few examples of the device."""
        return sample_inputs(self.task, self.model, self.device)

    @cached_property
    def rows(self) -> Sequence[DeviceRow]:
        """The measurements of the device."""
        return self.run.results_of(self.device).rows[self.device]

    @property
    def stage(self) -> str:
        """The stage that the model is the result of; not one in which the device's training failed."""
        if self.which == "global":
            return Stage.PRETRAINED
        own = [row for row in self.rows if row["model"] == self.which and row["stage"] != Stage.SERVED]
        sound = [row["stage"] for row in own if not is_failed(row)]
        return last_stage(sound or ([Stage.PERSONALIZED] if own else self.run.stages))

    @property
    def metadata(self) -> dict[str, Any]:
        """The description of the model that goes with it, as JSON values."""
        task = self.run.models.origin.task
        about = task.predictor.preprocessing if task.predictor else {}
        return {
            "device": self.device,
            "model": self.which,
            "stage": str(self.stage),
            "run": self.run.about,
            "task": {
                "kind": self.run.task_options.get("kind", ""),
                "preprocessing": dict(about),
                "derived": dict(task.derived),
            },
            "inputs": shapes_of_inputs(self.samples),
            "metric": self._metric(),
        }

    def _metric(self) -> dict[str, Any]:
        summary = self.run.results_of(self.device).summary
        about = {"name": summary["metric"], "direction": summary["direction"], "split": summary["split"]}
        own = [row for row in self.rows if (row["stage"], row["split"]) == (self.stage, summary["split"])]
        return {
            **about,
            **{name: row[name] for row in own for name in ("examples", "weight", "loss", "metric")},
        }


class Results:
    """The results of a run or of an onboarding, read once for all of its devices.

    Args:
        folder: its folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.summary = folder.summary
        """The statistics of each stage."""
        self.rows = RowsBy(folder.measurements, "device")
        """The measurements of each device."""


class ServedRun:
    """A finished run, from which models leave.

    Args:
        folder: the run's folder.
        models: its models.
    """

    def __init__(self, folder: RunFolder, models: Models) -> None:
        self.folder = folder
        self.models = models
        self.record = OnboardedRun(folder)
        self._joined: dict[int, Task] = {}
        self._results: dict[Path, Results] = {}

    @cached_property
    def devices(self) -> Sequence[DeviceId]:
        """All devices of the run, and those that have joined it."""
        own = self.models.origin.task.devices
        # One that the run has in its table, but has neither asked nor evaluated, can join it too.
        joined = [device for device in self.record.joined if device not in own]
        return [*own.ids, *joined] if joined else own.ids

    def results_of(self, device: DeviceId) -> Results:
        """Return the results among which a device has its measurements: the run's, or an onboarding's."""
        folder = self.record.holder(device)
        if folder.path not in self._results:
            self._results[folder.path] = Results(folder)
        return self._results[folder.path]

    def task_of(self, device: DeviceId) -> Task:
        """Return the task with the rows of a device: the run's, or that of its onboarding."""
        if device not in self.record.joined:
            return self.models.origin.task
        joined = self.record.joined[device]
        if joined.number not in self._joined:
            self._joined[joined.number] = origin_of(joined.folder).task
        return self._joined[joined.number]

    @property
    def task_options(self) -> Mapping[str, Any]:
        """The section `task` of the run's config."""
        return self.folder.values.get("task", {})

    @cached_property
    def stages(self) -> list[str]:
        """The stages of the run that have measurements."""
        return sorted(set(self.folder.measurements["stage"].to_pylist()))

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """The description of the run: its name, the digest of its config, and versions."""
        values = self.folder.values
        versions = {name: values.get("made_with", {}).get(name) for name in _VERSIONS}
        digest = hashlib.sha256(self.folder.config_text.encode()).hexdigest()
        return {"name": values.get("name", ""), "config_sha256": digest, "made_with": versions}

    def subject(self, device: DeviceId) -> Subject:
        """Return the model that a device is served.

        Raises:
            ConfigError: the run has no such device.
        """
        try:
            self.models.personalization(device)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return Subject(self, device, self.record.served.get(device, self._default))

    @cached_property
    def _default(self) -> Literal["personal", "global"]:
        """The model of a device that was not evaluated: without a measurement, no own model was chosen."""
        if self.folder.values.get("evaluate", {}).get("choose"):
            return "global"
        return MODEL_OF[last_stage(self.stages)]
