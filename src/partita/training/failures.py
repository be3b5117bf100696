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
    _sampled: set[DeviceId] = field(default_factory=set)
    _in_blocks: int = 0

    @property
    def asked(self) -> int:
        """The number of devices that were asked to train."""
        return len(self._sampled) + self._in_blocks

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a round, in place, given its line of `rounds.jsonl`; an evaluation trains nothing."""
        if line["work"] == "evaluate":
            return
        if line["work"] == "update":
            self._sampled.update(line["asked"])
        else:  # Fine-tuning visits each device once: the ids of a million devices are not kept.
            self._in_blocks += len(line["asked"])
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
    for line in lines:
        undone = best and line["work"] == "update" and line["round"] >= best.get(line["stage"], math.inf)
        if not undone:
            found.setdefault(line["stage"], TrainingFailures()).add(line)
    return found
