"""The model that each device is served: its own or the pretrained one, and never one known not to be finite.

A model is not finite on a device where its loss or a prediction is not, on any split that was measured. No
metric of such a model means anything, so the other model is served there, if that one is finite.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from partita.protocol import DeviceId, Stage
from partita.tasks.measure import NOT_NUMBERS
from partita.tasks.task import Task
from partita.training.evaluation import MODEL_OF, DeviceRow, gains_on, is_failed, last_stage

Rows = Callable[[], Iterable[DeviceRow]]
"""Returns the measurements of all devices; called more than once."""
Served = Literal["global", "personal"]
"""The pretrained model, or a device's own."""


def is_finite(row: DeviceRow) -> bool:
    """Return whether a model's loss and predictions are finite in a row; not asked where training failed."""
    reason = row["reason"] or ""
    return is_failed(row) or (row["loss"] is not None and NOT_NUMBERS not in reason)


def served(rows: Rows, task: Task, *, devices: int) -> Iterator[DeviceRow]:
    """Yield the rows of the model that each device is served: its own where better on validation data.

    On a tie, and where a device has no validation metric or its training failed in the last stage, the
    pretrained model is served. A model that is not finite gives way to one that is.

    Args:
        rows: returns the measurements as in `summarize`.
        task: names the headline metric and its direction.
        devices: number of evaluated devices.
    """
    last = last_stage(row["stage"] for row in rows())
    before, own = (_Soundness.of(rows(), stage, devices) for stage in (Stage.PRETRAINED, last))
    gains = gains_on(rows(), last, task, devices=devices, split="validation")
    has_own = own.is_finite & ((gains > 0) | before.is_broken)

    def of(stage: Stage, *, own: bool) -> Iterator[DeviceRow]:
        return (r for r in rows() if r["stage"] == stage and has_own[r["position"]] == own)

    chosen = of(Stage.PRETRAINED, own=False), of(last, own=True)
    for row in heapq.merge(*chosen, key=lambda row: row["position"]):
        yield {**row, "stage": Stage.SERVED}


@dataclass(frozen=True)
class _Soundness:
    """The devices on which the model of a stage is known to be finite, or not to be, by position."""

    is_finite: npt.NDArray[np.bool_]
    is_broken: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Iterable[DeviceRow], stage: Stage, devices: int) -> "_Soundness":
        """Return what the rows of a stage say; a device whose training failed is neither."""
        known, broken = np.zeros((2, devices), bool)
        for row in rows:
            if row["stage"] == stage and not is_failed(row):
                known[row["position"]] = True
                broken[row["position"]] |= not is_finite(row)
        return cls(known & ~broken, broken)


def better(rows: Rows, task: Task, before: Mapping[DeviceId, Served]) -> Iterator[DeviceRow]:
    """Yield the rows of the model that is better on validation data: the new one, or the one before.

    On a tie, and where there is no validation metric, the model before stays. A model that is not finite
    gives way to one that is.

    Args:
        rows: returns the measurements of devices that were personalized again.
        task: names the headline metric and its direction.
        before: the model that each device was served before.
    """
    metrics: dict[tuple[DeviceId, str], float | None] = {}
    broken: set[tuple[DeviceId, str]] = set()
    for row in rows():
        place = row["device"], row["stage"]
        if not is_finite(row):
            broken.add(place)
        if row["split"] == "validation":
            metrics[place] = row["metric"]
    sign = 1 if task.metrics[task.headline].direction == "up" else -1
    for row in rows():
        device = row["device"]
        is_personal = before.get(device, "personal") == "personal"
        old = Stage.PERSONALIZED if is_personal else Stage.PRETRAINED
        measured = [metrics.get((device, stage)) for stage in (Stage.FINETUNED, old)]
        new, kept = (None if metric is None else sign * metric for metric in measured)
        is_better = new is not None and ((device, old) in broken or (kept is not None and new > kept))
        is_new = is_better and (device, Stage.FINETUNED) not in broken
        if row["stage"] == (Stage.FINETUNED if is_new else old):
            yield {**row, "stage": Stage.SERVED, "is_new": is_new}


@dataclass
class ServedModels:
    """The model that each device is served, by the rows of a run's table, which are added in order."""

    last: dict[DeviceId, Stage] = field(default_factory=dict)
    """The last stage that each device was evaluated in."""
    trained: dict[DeviceId, Stage] = field(default_factory=dict)
    """The last of them in which its training had not failed: the model that it has is of this stage."""
    chosen: dict[DeviceId, Served] = field(default_factory=dict)
    """The model that was chosen on validation data."""
    broken: dict[DeviceId, dict[Stage, str]] = field(default_factory=dict)
    """The stages whose model is not finite on a device, with the reason; only of devices that have any."""

    def add(self, row: DeviceRow) -> None:
        """Add a row, in place."""
        device, stage = row["device"], Stage(row["stage"])
        if stage is Stage.SERVED:
            self.chosen[device] = row["model"]
            return
        self.last[device] = stage
        if not is_failed(row):
            self.trained[device] = stage
        if not is_finite(row):
            self.broken.setdefault(device, {}).setdefault(stage, row["reason"])

    def of(self, device: DeviceId) -> Served:
        """Return the model that was chosen, or else the device's own unless only the other is finite."""
        if device in self.chosen:
            return self.chosen[device]
        is_replaced = self._reason(device) is not None and not self._has_none(device)
        return "global" if is_replaced else MODEL_OF[self.last[device]]

    def not_finite(self, *, none: bool) -> dict[DeviceId, str]:
        """Return the devices whose own model is not finite, with reasons.

        Args:
            none: those on which no model is finite; False: those that are served the pretrained one instead.
        """
        found = {device: self._reason(device) for device in self.broken if self._has_none(device) == none}
        return {device: reason for device, reason in found.items() if reason is not None}

    def _reason(self, device: DeviceId) -> str | None:
        """Return why the last model that a device has is not finite, None if it is."""
        return self.broken.get(device, {}).get(self.trained.get(device, Stage.SERVED))

    def _has_none(self, device: DeviceId) -> bool:
        return Stage.PRETRAINED in self.broken.get(device, {})
