"""The journal of a run, as the training loop sees it: where every round is written and committed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from partita.params import Params
from partita.protocol import DeviceId
from partita.server.round import State
from partita.training.evaluation import DeviceRow, Summary

RoundRow = Mapping[str, Any]
"""A line of `rounds.jsonl`: stage, round, loss, learning rates, devices, bytes, seconds."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """The last round that a resumed run does not repeat."""

    number: int
    """Position of the round in the plan, from 0."""
    stage: str
    round: int
    label: str
    """The label under which devices saved their personal parts in it."""
    counted: Sequence[DeviceId]
    """Devices whose new personal parts count."""
    asked: Sequence[DeviceId]
    """Devices that may have saved a personal part."""
    steps: int
    """Server steps taken in this stage so far."""
    best: int | None = None
    """The stage's best round so far, where training may stop early: the journal keeps its u."""


class Journal(Protocol):
    """The durable record of a run; one round is one commit."""

    def last(self) -> Commit | None:
        """Return the last commit, None in a new run."""
        ...

    def state(self) -> State | None:
        """Return the server's state at the last commit, None in a new run."""
        ...

    def best(self) -> dict[str, Tensor]:
        """Return u after the best round of the last commit."""
        ...

    def commit(self, commit: Commit, state: State, line: RoundRow, rows: Sequence[DeviceRow]) -> None:
        """Commit a round: the server's state, the round's line in `rounds.jsonl`, measurements by device."""
        ...

    def save_shared(self, name: str, params: Params) -> None:
        """Save tensors that belong to no device."""
        ...

    def shared(self, name: str) -> dict[str, Tensor]:
        """Return tensors that were saved."""
        ...

    def rounds(self) -> Iterator[RoundRow]:
        """Yield the lines of all committed rounds, without those of unseen devices."""
        ...

    def onboarding(self) -> Iterator[RoundRow]:
        """Yield the lines of the committed rounds of unseen devices."""
        ...

    def rows(self) -> Iterator[DeviceRow]:
        """Yield the committed measurements by device."""
        ...

    def finish(self, columns: Mapping[str, type], rows: Iterable[DeviceRow], summary: Summary) -> None:
        """Write the table of devices and the summary."""
        ...

    def finished(self) -> Summary | None:
        """Return the summary of a finished run, None before the end."""
        ...
