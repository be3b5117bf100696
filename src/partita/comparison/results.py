"""What the cells of a comparison gave."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from partita.comparison.grid import CONTINUED, START
from partita.comparison.running import Comparison, journal_of
from partita.comparison.statistics import Direction, Values
from partita.config.methods import SERVERS
from partita.config.reading import config_of
from partita.data.arrow import read_table
from partita.errors import RunFailed
from partita.params import Params, from_bytes
from partita.protocol import DeviceId, Stage
from partita.runner import is_finished

Row = tuple[str, str]
"""A method and a partition."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one cell gave."""

    stages: Mapping[str, Values]
    """By stage and device, the metric and its weight."""
    rounds: int
    sent: int
    """Bytes to and from all devices."""
    seconds: float
    """Of all devices' work, one after the other."""
    personal: int
    """How many numbers a device keeps."""

    @property
    def last(self) -> Values:
        """What the model of its last stage of training does."""
        return self.stages[[stage for stage in self.stages if stage != Stage.SERVED][-1]]


@dataclass(frozen=True)
class Results:
    """What all finished cells of a comparison gave."""

    metric: str
    direction: Direction
    outcomes: Mapping[Row, Mapping[int, Outcome]]
    """By method and partition, then by seed."""
    titles: Mapping[str, str]
    baseline: str
    failed: Mapping[str, str]
    """Why cells failed, by name."""
    begin_pretrained: frozenset[Row]
    """The rows whose runs begin from the pretrained model of their seed."""

    @cached_property
    def reference(self) -> Mapping[int, Values]:
        """By seed, the model that helped and hurt refer to: the pretrained one, or FedAvg of equal rounds."""
        starts = self.outcomes[START, ""]
        if any(outcome.rounds for outcome in starts.values()):
            return {seed: outcome.last for seed, outcome in starts.items()}
        return {seed: outcome.last for seed, outcome in self.outcomes.get((CONTINUED, ""), {}).items()}


def collect(comparison: Comparison, failed: Mapping[str, str]) -> Results:
    """Return what the finished cells gave.

    Raises:
        RunFailed: no cell was finished.
    """
    outcomes: dict[Row, dict[int, Outcome]] = {}
    summary: Mapping[str, Any] = {}
    for cell in comparison.cells:
        folder = comparison.folder_of(cell)
        if is_finished(folder):
            outcomes.setdefault(cell.row, {})[cell.seed] = _outcome(folder)
            summary = summary or _summary(folder)
    if (START, "") not in outcomes:
        raise RunFailed(f"No cell was finished: {next(iter(failed.values()), 'none was done')}")
    config = config_of(comparison.values)
    titles = {cell.method: cell.title for cell in comparison.cells if cell.method != START}
    titles[START] = SERVERS[config.pretrain.server_optimizer] if config.pretrain.rounds else "Start"
    return Results(
        metric=summary["metric"],
        direction=summary["direction"],
        outcomes=outcomes,
        titles=titles,
        baseline=config.compare.baseline,
        failed=failed,
        begin_pretrained=frozenset(cell.row for cell in comparison.cells if cell.begins_pretrained),
    )


def _summary(folder: Path) -> Mapping[str, Any]:
    return json.loads((folder / "summary.json").read_bytes())


def _outcome(folder: Path) -> Outcome:
    stages: dict[str, dict[DeviceId, tuple[float, int]]] = {}
    split = _summary(folder)["split"]
    for row in read_table(folder / "devices.parquet").to_pylist():
        if row["split"] == split and row["metric"] is not None:
            stages.setdefault(row["stage"], {})[row["device"]] = row["metric"], row["weight"]
    lines = list(journal_of(folder))
    return Outcome(
        stages={stage: stages[stage] for stage in Stage if stage in stages},
        rounds=sum(line["work"] == "update" for line in lines),
        sent=sum(sum(line["bytes"].values()) for line in lines),
        seconds=sum(line["seconds"] for line in lines),
        personal=sum(tensor.numel() for tensor in _kept(folder).values()),
    )


def _kept(folder: Path) -> Params:
    """Return what every device begins with as its own."""
    starts = sorted((folder / "shared").glob("start*.safetensors"))
    return from_bytes(starts[-1].read_bytes()) if starts else {}
