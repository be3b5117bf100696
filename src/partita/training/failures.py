"""Devices whose training failed in a stage, from the lines of its rounds, and how many may fail."""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from partita.errors import TooManyFailed
from partita.protocol import DeviceId
from partita.server.round import Outcome
from partita.training.plan import Turn

_ENOUGH = 20
"""Visits after which it is known whether too many fail: of a few devices, most may fail by chance."""


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


class FailureLimit:
    """Ends a run in whose training rounds too many devices fail; grows in place with the rounds of a stage.

    A cohort of `_ENOUGH` devices or more counts alone, a smaller one together with the rounds before
    it, as many as it takes to have asked so many. Visits that these still lack count as successful.

    Args:
        max_failed: the share of the devices that may fail.
    """

    def __init__(self, max_failed: float = 1.0) -> None:
        self._max_failed = max_failed
        self._rounds: deque[tuple[int, int]] = deque(maxlen=_ENOUGH - 1)

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a round, in place, given its line of `rounds.jsonl`."""
        if line["work"] == "update":
            self._rounds.append((len(line["asked"]), len(line["failed"])))

    def check(self, turn: Turn, outcome: Outcome) -> None:
        """Check a round that is about to be committed.

        Raises:
            TooManyFailed: too many devices failed; the round must not be counted.
        """
        rounds, asked, failed = 1, len(outcome.asked), len(outcome.failed)
        for before in reversed(self._rounds):
            if asked >= _ENOUGH:
                break
            rounds, asked, failed = rounds + 1, asked + before[0], failed + before[1]
        if outcome.failed and failed > self._max_failed * max(asked, _ENOUGH):
            together = f", and {failed} of {asked} in the last {rounds} rounds" if rounds > 1 else ""
            raise TooManyFailed(
                f"{len(outcome.failed)} of {len(outcome.asked)} devices failed in round {turn.round} of "
                f"`{turn.stage}`{together}: more than the share `max_failed` = {self._max_failed:g}. "
                f"{_commonest(outcome.failed)} {_committed(turn)}"
            )


def _commonest(reasons: Mapping[DeviceId, str]) -> str:
    """Return a sentence with the reason of most devices, the first of equals."""
    ((reason, count),) = Counter(reasons.values()).most_common(1)
    device = next(device for device, own in reasons.items() if own == reason)
    others = "" if count == len(reasons) else f", the reason of {count}"
    return f"Device {device!r}{others}: {reason}"


def _committed(turn: Turn) -> str:
    """Return what is committed before a round that is not counted, and what can be done."""
    before = f"all rounds before it are committed, the last one of `{turn.stage}` is {turn.round - 1}"
    state = before if turn.round else "no round of this stage is committed yet"
    return (
        f"This round is not counted; {state}. Mend the cause, or allow more failures with `max_failed`, and "
        "resume. If losses diverge, lower the learning rates or set `max_grad_norm` in a new run."
    )


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
            trained = set(line["asked"]).difference(line.get("left_out", ()))
            sampled.setdefault(stage, set()).update(trained)
        elif work == "finetune":  # It visits each device once.
            own.asked += len(line["asked"])
        elif line.get("final"):
            own.unevaluated |= line["failed"]
            own.evaluated += len(line["asked"])
    for stage, devices in sampled.items():
        found[stage].asked += len(devices)
    return found
