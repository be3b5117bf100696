"""The result of a run: measurements by device, u, and every device's model."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from partita.data.arrow import Table
from partita.errors import ConfigError
from partita.models.full import Full
from partita.params import Params, cloned, copy_into
from partita.partition import Personalization
from partita.protocol import DeviceId, Stage
from partita.report import write
from partita.report.differences import counted
from partita.report.models import all_models
from partita.report.tables.commands import models_table
from partita.report.tables.table import to_html
from partita.runs.folder import RunFolder
from partita.shown import shown
from partita.tasks.build import build_model
from partita.tasks.task import Task
from partita.training.evaluation import Summary
from partita.training.journal import RoundRow

Which = Literal["personal", "global", "served"]
"""A device's own model, the pretrained one, or the one of the two that the device is served."""


class Record(Protocol):
    """The readable record of a finished run: its folder, or its journal in memory."""

    @property
    def summary(self) -> Summary:
        """Statistics of each stage."""
        ...

    @property
    def measurements(self) -> Table:
        """The table of measurements."""
        ...

    def rounds(self) -> Iterator[RoundRow]:
        """Yield the lines of all rounds but those of unseen devices."""
        ...

    def shared(self, name: str) -> dict[str, Tensor]:
        """Return tensors that belong to no device."""
        ...

    def kept(self, device: DeviceId) -> dict[str, Tensor] | None:
        """Return all tensors that a device keeps, None where there are none."""
        ...


@dataclass(frozen=True)
class Origin:
    """The task and the settings that a run was made from: what its models are built from again."""

    task: Task
    personalization: Personalization
    seed: int


class Result:
    """The result of a finished run, in memory or in its folder.

    Args:
        record: the run's folder, or its journal in memory.
        origin: returns the task and the settings of the run; called once, when a model is first asked for.
    """

    def __init__(self, record: Record, origin: Callable[[], Origin]) -> None:
        self._record = record
        self._make_origin = origin

    @cached_property
    def _origin(self) -> Origin:
        with _gradients():
            return self._make_origin()

    @property
    def summary(self) -> Summary:
        """For each stage: means, spread, and how many devices were helped and hurt."""
        return self._record.summary

    @property
    def devices(self) -> Table:
        """An Arrow table with a row for each stage, device and split."""
        return self._record.measurements

    @property
    def rounds(self) -> list[RoundRow]:
        """The lines of `rounds.jsonl`, a mapping for each round, without those of unseen devices."""
        return list(self._record.rounds())

    @cached_property
    def shared(self) -> Mapping[str, Tensor]:
        """The shared part u after training."""
        return self._record.shared(Stage.PERSONALIZED)

    @property
    def derived(self) -> Mapping[str, Any]:
        """Values derived from the data of all devices that models depend on, such as a vocabulary."""
        return self._origin.task.derived

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
        """Return which model the device is served: its own, or the global one where that was chosen."""
        rows = self.devices.select(["stage", "device", "model"]).to_pylist()
        own = [row for row in rows if row["device"] == device]
        if not own:
            raise ValueError(f"Device {device!r} was not evaluated in this run.")
        chosen = [row["model"] for row in own if row["stage"] == Stage.SERVED]
        return (chosen or [own[-1]["model"]])[0]

    def personal(self, device: DeviceId) -> dict[str, Tensor]:
        """Return v_i, the personal part of a device; its start where the device was never counted."""
        own = self._personalization(device)
        if kept := own.partition.personal_in(self._record.kept(device) or {}):
            return kept
        if own.start is not None:
            return cloned(own.start(self.shared))
        return cloned(own.partition.of(self._build(own, self._record.shared(Stage.PRETRAINED))).personal)

    def model(self, device: DeviceId, which: Which = "personal") -> nn.Module:
        """Return a device's whole model, in eval mode.

        Args:
            device: the device.
            which: its own model, the pretrained (`global`) one, or the one that it is `served`.
        """
        own = self._personalization(device)
        if which == "served":
            which = self.served(device)
        if which == "global":
            return self._build(None, self._record.shared(Stage.PRETRAINED)).eval()
        personal, model = self.personal(device), self._build(own, self._record.shared(Stage.PRETRAINED))
        parts = own.partition.of(model)
        copy_into(parts.shared, self.shared)
        copy_into(parts.personal, personal)
        return (model.personal if isinstance(model, Full) else model).eval()

    def _personalization(self, device: DeviceId) -> Personalization:
        """Return how a device's model is split."""
        devices = self._origin.task.devices
        if device not in devices:
            near = difflib.get_close_matches(device, devices.ids[:10_000], n=3)
            raise ValueError(f"There is no device {device!r}. Near ids: {', '.join(near) or 'none'}.")
        return self._origin.personalization.on(device)

    def _build(self, own: Personalization | None, state: Params | None = None) -> nn.Module:
        origin = self._origin
        with _gradients():
            return build_model(origin.task, own, seed=origin.seed, state=state)


@contextmanager
def _gradients() -> Iterator[None]:
    """Record gradients, also where `torch.inference_mode()` is on: a task is checked with them."""
    with torch.inference_mode(False), torch.enable_grad():
        yield
