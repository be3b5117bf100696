"""The results of a comparison, read from the folders of its runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.errors import RunFailed
from partita.methods import registry
from partita.methods.named import Citation
from partita.protocol import DeviceId, Stage
from partita.runs.folder import RunFolder
from partita.runs.warnings import divergence, failed_stages, warnings_of
from partita.studies.cells import START, base_of, baseline_of
from partita.studies.comparison import Comparison, first_seed
from partita.studies.statistics import DeviceMetrics
from partita.tasks.metrics import Direction

Variant = tuple[str, str]
"""A method with a personal part: one row of the tables."""
_SHOWN = 3
"""Cells that a note lists."""


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """The results of one cell."""

    stages: Mapping[str, DeviceMetrics]
    """The metric and its weight, by stage and device; devices without a metric are left out, and all devices
    of a stage that failed."""
    rounds: int
    """Number of rounds that trained the shared part."""
    sent: int
    """Bytes sent to and received from all devices in training."""
    seconds: float
    """Training time of all devices, one after the other."""
    kept: int
    """Largest number of values that a device keeps after the last stage: v_i and the state of its method."""

    @property
    def last(self) -> DeviceMetrics:
        """The metrics of the model after the last stage of training."""
        return self.stages[[stage for stage in self.stages if stage != Stage.SERVED][-1]]


@dataclass(frozen=True)
class Results:
    """The results of all finished cells of a comparison."""

    metric: str
    direction: Direction
    split: str
    """The split on which models are evaluated."""
    seeds: int
    outcomes: Mapping[Variant, Mapping[int, CellResult]]
    """By variant and seed."""
    titles: Mapping[str, str]
    citations: Mapping[str, Citation | None]
    """The paper of each method."""
    baseline: str
    notes: Sequence[str]
    """Personal parts without a row, cells that failed, and every warning about the run of a cell."""
    begin_pretrained: frozenset[Variant]
    """The variants whose runs begin from the pretrained model of their seed."""
    reference: str
    """The method that helped and hurt refer to: pretraining, or training without a personal part."""
    tuned: Mapping[Variant, Mapping[str, Any]] = field(default_factory=dict)
    """The values that each variant was tuned to."""
    failures: Sequence[str] = ()
    """Of the notes, those about cells and stages that failed and have no result."""
    diverged: Sequence[str] = ()
    """The cells that diverged and have a result nonetheless."""
    runs: Mapping[Variant, Mapping[int, RunFolder]] = field(default_factory=dict)
    """The finished runs, by variant and seed; also those without a metric."""

    def before(self, variant: Variant) -> list[Variant]:
        """Return the variants whose training a variant continues, the first one first."""
        return [(START, "")] if variant in self.begin_pretrained else []

    def of(self, method: str, partition: str = "") -> Mapping[int, CellResult]:
        """Return the results of a method, by seed."""
        return self.outcomes.get((method, partition), {})


def collect(comparison: Comparison, failed: Mapping[str, str]) -> Results:
    """Return the results of the finished cells.

    Raises:
        RunFailed: no cell is finished.
    """
    outcomes: dict[Variant, dict[int, CellResult]] = {}
    runs: dict[Variant, dict[int, RunFolder]] = {}
    summary: Mapping[str, Any] = {}
    failures = [f"{name} failed: {reason}" for name, reason in failed.items()]
    diverged: list[str] = []
    warnings: dict[str, list[str]] = {}
    for cell in comparison.cells:
        run = comparison.run_of(cell)
        if not run.is_finished:
            continue
        summary = summary or run.summary
        outcome = _outcome(run)
        runs.setdefault(cell.row, {})[cell.seed] = run
        if outcome.last:
            outcomes.setdefault(cell.row, {})[cell.seed] = outcome
        diverged += [cell.name] if any(divergence(run)) else []
        own = list(failed_stages(run))
        failures += [f"{cell.name}: {warning}." for warning in own]
        for warning in warnings_of(run):
            if warning not in own:
                warnings.setdefault(warning, []).append(cell.name)
    notes = [*failures, *(f"{listed(names)}: {warning}." for warning, names in warnings.items())]
    if not outcomes:
        resume = f"No run is finished: resume with `partita compare --resume {comparison.folder}`."
        sentences = [note if note.endswith(".") else f"{note}." for note in notes]
        raise RunFailed(" ".join(["There is nothing to compare.", *(sentences or [resume])]))
    config = base_of(comparison.values)
    methods = comparison.methods
    return Results(
        metric=summary["metric"],
        direction=summary["direction"],
        split=summary["split"],
        seeds=config.compare.seeds,
        outcomes=outcomes,
        titles={name: method.title for name, method in methods.items()},
        citations={name: method.citation for name, method in methods.items()},
        baseline=baseline_of(config.compare),
        notes=[*comparison.notes, *notes],
        failures=failures,
        diverged=diverged,
        begin_pretrained=frozenset(
            cell.row for cell in comparison.cells if methods[cell.method].begins_pretrained
        ),
        reference=START if config.pretrain.rounds else registry.REFERENCE,
        tuned={cell.row: comparison.tuned_to(cell) for cell in first_seed(comparison.cells)},
        runs=runs,
    )


def listed(cells: Sequence[str]) -> str:
    """Return the names of cells, the first ones if they are many.

    >>> listed(["a-1", "a-2", "a-3", "b-1", "b-2"])
    'a-1, a-2, a-3 and 2 more'
    """
    more = f" and {len(cells) - _SHOWN} more" if len(cells) > _SHOWN else ""
    return ", ".join(cells[:_SHOWN]) + more


def _outcome(run: RunFolder) -> CellResult:
    lines = list(run.rounds())
    stages: dict[str, dict[DeviceId, tuple[float, int]]] = {line["stage"]: {} for line in lines}
    split, failed = run.summary["split"], run.summary.get("failed", {})
    table = run.devices.select(["stage", "device", "split", "metric", "weight"])
    for row in table.to_pylist():
        if row["split"] == split and row["metric"] is not None and row["stage"] not in failed:
            stages.setdefault(row["stage"], {})[row["device"]] = row["metric"], row["weight"]
    training = [line for line in lines if line["work"] != "evaluate"]
    return CellResult(
        stages={stage: stages[stage] for stage in Stage if stage in stages},
        rounds=sum(line["work"] == "update" for line in training),
        sent=sum(sum(line["bytes"].values()) for line in training),
        seconds=sum(line["seconds"] for line in training),
        kept=run.kept_parameters,
    )
