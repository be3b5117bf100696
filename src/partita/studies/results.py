"""What the cells of a comparison gave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partita.config.methods import SERVERS
from partita.data.arrow import read_table
from partita.errors import RunFailed
from partita.protocol import DeviceId, Stage
from partita.runs.folder import RunFolder
from partita.studies.cells import CONTINUED, START, base_of, baseline_of, titles_of
from partita.studies.compare import Comparison, kinds
from partita.studies.statistics import Direction, Values

Row = tuple[str, str]
"""A method and a partition."""
_SERVER_PAPERS = dict.fromkeys(SERVERS, "reddi2021") | {"fedavg": "mcmahan2017"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one cell gave."""

    stages: Mapping[str, Values]
    """By stage and device, the metric and its weight; devices without a metric are not there."""
    rounds: int
    """In which the shared part was trained."""
    sent: int
    """Bytes to and from all devices, for training."""
    seconds: float
    """Of all devices' training, one after the other."""
    kept: int
    """How many numbers a device keeps after the last stage, v_i and what else its method has, at most."""
    devices: int
    """How many were evaluated."""

    @property
    def last(self) -> Values:
        """What the model of its last stage of training does."""
        return self.stages[[stage for stage in self.stages if stage != Stage.SERVED][-1]]


@dataclass(frozen=True)
class Results:
    """What all finished cells of a comparison gave."""

    metric: str
    direction: Direction
    split: str
    """Which rows models are judged by."""
    seeds: int
    outcomes: Mapping[Row, Mapping[int, Outcome]]
    """By method and partition, then by seed."""
    titles: Mapping[str, str]
    cites: Mapping[str, str]
    """By method, its paper; empty where it has none."""
    baseline: str
    notes: Sequence[str]
    """Which cells failed, or are not measured on all devices, and why."""
    begin_pretrained: frozenset[Row]
    """The rows whose runs begin from the pretrained model of their seed."""
    reference: str
    """The method that helped and hurt refer to: what pretrains, or FedAvg of equal rounds."""
    tuned: Mapping[Row, Mapping[str, Any]] = field(default_factory=dict)
    """By row, the values that it was tuned to."""

    def of(self, method: str, partition: str = "") -> Mapping[int, Outcome]:
        """Return what a method gave, by seed."""
        return self.outcomes.get((method, partition), {})


def collect(comparison: Comparison, failed: Mapping[str, str]) -> Results:
    """Return what the finished cells gave.

    Raises:
        RunFailed: no cell was finished.
    """
    outcomes: dict[Row, dict[int, Outcome]] = {}
    summary: Mapping[str, Any] = {}
    notes = [f"{name} failed: {reason}" for name, reason in failed.items()]
    for cell in comparison.cells:
        folder = comparison.folder_of(cell)
        if not RunFolder(folder).is_finished:
            continue
        summary = summary or RunFolder(folder).summary
        outcome = _outcome(folder)
        if outcome.last:
            outcomes.setdefault(cell.row, {})[cell.seed] = outcome
        if missing := outcome.devices - len(outcome.last):
            notes.append(f"{cell.name}: {missing} of {outcome.devices} devices have no {summary['metric']}.")
    if not outcomes:
        go_on = f"No run is finished: go on with `partita compare --resume {comparison.folder}`."
        raise RunFailed(" ".join(["There is nothing to compare.", *(notes or [go_on])]))
    config = base_of(comparison.values)
    titles = titles_of([cell.method for cell in comparison.cells if cell.method != START])
    titles[START] = SERVERS[config.pretrain.server_optimizer] if config.pretrain.rounds else "Start"
    again = SERVERS[config.personalize.server_optimizer]
    titles[CONTINUED] = f"{again}, continued" if config.pretrain.rounds else again
    cites = {cell.method: cell.cites for cell in comparison.cells}
    cites[CONTINUED] = _SERVER_PAPERS[config.personalize.server_optimizer]
    cites[START] = _SERVER_PAPERS[config.pretrain.server_optimizer] if config.pretrain.rounds else ""
    return Results(
        metric=summary["metric"],
        direction=summary["direction"],
        split=summary["split"],
        seeds=config.compare.seeds,
        outcomes=outcomes,
        titles=titles,
        cites=cites,
        baseline=baseline_of(config.compare),
        notes=notes,
        begin_pretrained=frozenset(cell.row for cell in comparison.cells if cell.begins_pretrained),
        reference=START if config.pretrain.rounds else CONTINUED,
        tuned={cell.row: comparison.tuned_to(cell) for cell in kinds(comparison.cells)},
    )


def _outcome(folder: Path) -> Outcome:
    lines = list(RunFolder(folder).rounds())
    stages: dict[str, dict[DeviceId, tuple[float, int]]] = {line["stage"]: {} for line in lines}
    split = RunFolder(folder).summary["split"]
    table = read_table(folder / "devices.parquet").select(["stage", "device", "split", "metric", "weight"])
    for row in table.to_pylist():
        if row["split"] == split and row["metric"] is not None:
            stages.setdefault(row["stage"], {})[row["device"]] = row["metric"], row["weight"]
    training = [line for line in lines if line["work"] != "evaluate"]
    evaluated = [line for line in lines if line["stage"] == Stage.PRETRAINED and line["final"]]
    return Outcome(
        stages={stage: stages[stage] for stage in Stage if stage in stages},
        rounds=sum(line["work"] == "update" for line in training),
        sent=sum(sum(line["bytes"].values()) for line in training),
        seconds=sum(line["seconds"] for line in training),
        kept=RunFolder(folder).kept_parameters,
        devices=sum(len(line["asked"]) for line in evaluated),
    )
