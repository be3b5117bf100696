"""The result of a run: measurements by device, u, and every device's model."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from partita.data.arrow import Table
from partita.errors import ConfigError
from partita.exports.export import FORMATS, export_device
from partita.exports.models import Models, Origin, Record, Which
from partita.exports.subject import ServedRun
from partita.protocol import DeviceId, Stage
from partita.report import write
from partita.report.differences import counted
from partita.report.models import all_models
from partita.report.tables.commands import models_table
from partita.report.tables.table import to_html
from partita.runs.folder import RunFolder
from partita.runs.onboarded import OnboardedRun
from partita.shown import shown
from partita.tasks.task import Task
from partita.training.evaluation import Summary
from partita.training.journal import RoundRow


class Result:
    """The result of a finished run, in memory or in its folder.

    Args:
        record: the run's folder, with the devices that have joined it, or its journal in memory.
        origin: returns the task and the settings of the run; called once, when a model is first asked for.
    """

    def __init__(self, record: RunFolder | Record, origin: Callable[[], Origin]) -> None:
        self._record = record
        self._models = Models(OnboardedRun(record) if isinstance(record, RunFolder) else record, origin)

    @property
    def summary(self) -> Summary:
        """For each stage: means, spread, and how many devices were helped and hurt."""
        return self._record.summary

    @property
    def devices(self) -> Table:
        """An Arrow table with a row for each stage, device and split, also of devices that have joined."""
        return self._models.record.measurements

    @property
    def rounds(self) -> list[RoundRow]:
        """The lines of `rounds.jsonl`, a mapping for each round, without those of unseen devices."""
        return list(self._record.rounds())

    @property
    def shared(self) -> Mapping[str, Tensor]:
        """The shared part u after training."""
        return self._models.shared

    @property
    def derived(self) -> Mapping[str, Any]:
        """Values derived from the data of all devices that models depend on, such as a vocabulary."""
        return self._models.origin.task.derived

    def report(self) -> Path:
        """Write the report to the run's folder, page, figures and tables, and return the page's path.

        Raises:
            ConfigError: the run is in memory.
        """
        if not isinstance(self._record, RunFolder):
            raise ConfigError(
                "The run is in memory and has no folder for a report: run it again with `out`, a new folder."
            )
        return write.write_report(self._record.path)

    def export(self, device: DeviceId, out: str | Path, *, format: str = "safetensors") -> Path:
        """Write the model that a device is served to a new file, as `partita export` does.

        Args:
            device: the device.
            out: the file.
            format: safetensors, which `partita.load` reads; torch-export or onnx, programs without Partita.

        Raises:
            ConfigError: the run is in memory, the file exists, or no import path names the model.
            RunFailed: the model cannot leave in this format.
        """
        if not isinstance(self._record, RunFolder):
            raise ConfigError(
                "The run is in memory and has no folder: run it again with `out`, a new folder."
            )
        if format not in FORMATS:
            raise ValueError(f"`format` must be one of {', '.join(FORMATS)}, got {format!r}.")
        return export_device(ServedRun(self._record, self._models), device, Path(out), format).file

    def __repr__(self) -> str:
        """Return the metric of each stage on one line."""
        summary = self.summary
        stages = [f"{stats['weighted_mean']:.4f} {stage}" for stage, stats in summary["stages"].items()]
        stages += [f"{stage} failed" for stage in summary.get("failed", {})]
        devices = max((stats["devices"] for stats in summary["stages"].values()), default=0)
        whose = f"{summary['split']} {summary['metric']} over {counted(devices, 'device')}"
        return shown(f"Result({whose}: {', '.join(stages)})")

    def _repr_html_(self) -> str:
        """Return the table of models, for a notebook."""
        found = {**self.summary["stages"], **self.summary.get("failed", {})}
        models = [(str(stage), found[stage]) for stage in Stage if stage in found]
        if isinstance(self._record, RunFolder):
            models = all_models(self._record)
        return to_html(models_table(self.summary, models))

    def served(self, device: DeviceId) -> Literal["global", "personal"]:
        """Return which model the device is served.

        It is its own, or the global one where that was chosen or is the only one finite on its data.
        """
        served = self._models.record.served
        if device not in served:
            raise ValueError(f"Device {device!r} was not evaluated in this run.")
        return served[device]

    def personal(self, device: DeviceId) -> dict[str, Tensor]:
        """Return v_i, the personal part of a device; its start where the device was never counted."""
        return self._models.personal(device)

    def model(self, device: DeviceId, which: Which = "personal") -> nn.Module:
        """Return a device's whole model, in eval mode.

        Args:
            device: the device.
            which: its own model, the pretrained (`global`) one, or the one that it is `served`.
        """
        self._models.personalization(device)
        chosen = self.served(device) if which == "served" else which
        return self._models.predictor(device, chosen, self._task_of)

    def _task_of(self, device: DeviceId) -> Task:
        """Return the task with the rows of a device: the run's, or that of its onboarding."""
        if isinstance(self._record, RunFolder):
            return ServedRun(self._record, self._models).task_of(device)
        return self._models.origin.task
