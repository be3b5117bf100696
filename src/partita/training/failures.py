"""Devices whose training failed in a stage, from the lines of its rounds."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from partita.protocol import DeviceId


@dataclass
class TrainingFailures:
    """The devices whose last visit in a stage failed: a later visit that succeeds trains the model again."""

    reasons: dict[DeviceId, str] = field(default_factory=dict)
    """The reason of each device whose last visit failed."""
    asked: int = 0
    """The number of devices that were asked to train, counted by `failures_by_stage` alone: the ids of all
    of a million devices are not kept while they train."""
    unevaluated: dict[DeviceId, str] = field(default_factory=dict)
    """The reason of each device whose evaluation at the end of the stage failed."""
    evaluated: int = 0
    """The number of devices that were asked for it; both are counted by `failures_by_stage` alone."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a round, in place, given its line of `rounds.jsonl`; an evaluation trains nothing."""
        if line["work"] == "evaluate":
            return
        for device in line["heard"]:
            self.reasons.pop(device, None)
        self.reasons |= line["failed"]


def failures_by_stage(
    lines: Iterable[Mapping[str, Any]], best: Mapping[str, int] | None = None
) -> dict[str, TrainingFailures]:
    """Return the failures of training in each stage of a run.

    Args:
        lines: the lines of `rounds.jsonl`.
        best: the round that a stage has gone back to: what came after it has no effect on its model.
    """
    found: dict[str, TrainingFailures] = {}
    sampled: dict[str, set[DeviceId]] = {}
    for line in lines:
        stage, work = line["stage"], line["work"]
        if best and work == "update" and line["round"] >= best.get(stage, math.inf):
            continue
        own = found.setdefault(stage, TrainingFailures())
        own.add(line)
        if work == "update":
            sampled.setdefault(stage, set()).update(line["asked"])
        elif work == "finetune":  # It visits each device once.
            own.asked += len(line["asked"])
        elif line.get("final"):
            own.unevaluated |= line["failed"]
            own.evaluated += len(line["asked"])
    for stage, devices in sampled.items():
        found[stage].asked += len(devices)
    return found
