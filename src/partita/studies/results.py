"""The results of a comparison, read from the folders of its runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.errors import RunFailed
from partita.methods import registry
from partita.methods.named import Citation
from partita.protocol import DeviceId, Stage
from partita.runs.folder import RunFolder
from partita.runs.tensors import kept_parameters
from partita.runs.warnings import divergence, failed_stages, warnings_of
from partita.shown import shown
from partita.studies.by_device import Positions, metrics_by_stage, training_examples
from partita.studies.cells import START, base_of
from partita.studies.columns import DEFAULT, chosen
from partita.studies.comparison import Comparison, first_seed
from partita.studies.folders import how_to_resume
from partita.studies.statistics import DeviceMetrics
from partita.studies.trials import Tuned
from partita.tasks.metrics import Direction
from partita.training.evaluation import Summary

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
    examples: Mapping[DeviceId, int] = field(default_factory=dict)
    """Number of training examples of each evaluated device."""
    further: Mapping[str, Mapping[str, DeviceMetrics]] = field(default_factory=dict)
    """The further metrics by name, each as in `stages`."""
    unseen: Mapping[str, DeviceMetrics] = field(default_factory=dict)
    """The same as `stages`, of the devices that training has not seen."""

    @property
    def last_stage(self) -> str:
        """The last stage of training."""
        return [stage for stage in self.stages if stage != Stage.SERVED][-1]

    @property
    def last(self) -> DeviceMetrics:
        """The metrics of the model after the last stage of training."""
        return self.stages[self.last_stage]

    @property
    def last_unseen(self) -> DeviceMetrics:
        """The metrics of the same model on the devices that training has not seen."""
        return self.unseen.get(self.last_stage, {})


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
    """The method that the column `difference` refers to."""
    notes: Sequence[str]
    """Personal parts without a row, cells that failed, and every warning about the run of a cell."""
    begin_pretrained: frozenset[Variant]
    """The variants whose runs begin from the pretrained model of their seed, or from its continuation."""
    begin_continued: frozenset[Variant] = frozenset()
    """The variants whose runs begin from what the round-matched reference made of the pretrained model."""
    tuned: Mapping[Variant, Tuned] = field(default_factory=dict)
    """The trials with which each variant was tuned."""
    failures: Sequence[str] = ()
    """Of the notes, those about cells that are not finished, and cells and stages that failed: they have no
    result."""
    unfinished: Sequence[str] = ()
    """Of the failures, the sentence about cells that are not finished."""
    diverged: Sequence[str] = ()
    """The cells that diverged and have a result nonetheless."""
    runs: Mapping[Variant, Mapping[int, RunFolder]] = field(default_factory=dict)
    """The finished runs, by variant and seed; also those without a metric. A table of one is read through
    `RunFolder.reopened`: all of them together may not fit in memory."""
    directions: Mapping[str, Direction] = field(default_factory=dict)
    """The direction of every metric, the headline metric's first."""
    alone: str = START
    """The method with which devices train alone."""
    columns: Sequence[str] = DEFAULT
    """The names of the columns that the table `methods` shows."""

    @property
    def reference(self) -> Variant:
        """The variant that every model is compared with; it may have no result."""
        return reference_among(self.outcomes)

    def examples(self, seed: int) -> dict[DeviceId, int]:
        """Return the number of training examples of every device that any run with a seed has evaluated."""
        found: dict[DeviceId, int] = {}
        for runs in self.outcomes.values():
            found |= runs[seed].examples if seed in runs else {}
        return found

    def before(self, variant: Variant) -> list[Variant]:
        """Return the variants whose training a variant continues, the first one first."""
        if variant in self.begin_continued:
            return [(START, ""), (registry.REFERENCE, "")]
        return [(START, "")] if variant in self.begin_pretrained else []

    def of(self, method: str, partition: str = "") -> Mapping[int, CellResult]:
        """Return the results of a method, by seed."""
        return self.outcomes.get((method, partition), {})


def reference_among(outcomes: Mapping[Variant, Mapping[int, CellResult]]) -> Variant:
    """Return the variant to compare all others with: as many rounds as theirs, without a personal part.

    Without its result, it is pretraining, if that has trained any rounds.
    """
    continued, start = (registry.REFERENCE, ""), (START, "")
    is_pretrained = any(outcome.rounds for outcome in outcomes.get(start, {}).values())
    return start if continued not in outcomes and is_pretrained else continued


def collect(comparison: Comparison, failed: Mapping[str, str]) -> Results:
    """Return the results of the finished cells.

    Raises:
        RunFailed: no cell is finished.
    """
    outcomes: dict[Variant, dict[int, CellResult]] = {}
    runs: dict[Variant, dict[int, RunFolder]] = {}
    finished: dict[str, RunFolder] = {}
    summary: Mapping[str, Any] = {}
    positions: Positions = {}
    unfinished = _unfinished(comparison, failed)
    failures = [*unfinished, *(f"{name} failed: {reason}" for name, reason in failed.items())]
    diverged: list[str] = []
    warnings: dict[str, list[str]] = {}
    for cell in comparison.cells:
        run = comparison.run_of(cell)
        if not run.is_finished:
            continue
        summary = summary or run.summary
        outcome = _outcome(run, positions)
        finished[cell.name] = runs.setdefault(cell.row, {})[cell.seed] = run.reopened()
        if outcome.last:
            outcomes.setdefault(cell.row, {})[cell.seed] = outcome
        diverged += [cell.name] if any(divergence(run)) else []
        own = list(failed_stages(run))
        failures += [f"{cell.name}: {warning}." for warning in own]
        for warning in warnings_of(run):
            if warning not in own:
                warnings.setdefault(warning, []).append(cell.name)
    notes = [
        *failures,
        *_stopping_notes(finished),
        *(f"{listed(names)}: {warning}." for warning, names in warnings.items()),
    ]
    if not outcomes:
        sentences = [note if note.endswith(".") else f"{note}." for note in notes]
        raise RunFailed(" ".join(["There is nothing to compare.", *sentences]))
    config = base_of(comparison.values)
    methods = comparison.methods
    return Results(
        metric=summary["metric"],
        direction=summary["direction"],
        split=summary["split"],
        seeds=config.compare.seeds,
        outcomes=outcomes,
        titles={name: shown(method.title) for name, method in methods.items()},
        citations={name: method.citation for name, method in methods.items()},
        baseline=config.compare.baseline or reference_among(outcomes)[0],
        notes=[*comparison.notes, *notes],
        failures=failures,
        unfinished=unfinished,
        diverged=diverged,
        begin_pretrained=frozenset(
            cell.row for cell in comparison.cells if methods[cell.method].begins_pretrained
        ),
        begin_continued=frozenset(
            cell.row for cell in comparison.cells if methods[cell.method].begins_continued
        ),
        tuned={
            cell.row: tuned
            for cell in first_seed(comparison.cells)
            if (tuned := comparison.trials_of(cell)) is not None
        },
        runs=runs,
        directions=summary.get("directions", {}),
        alone=next(name for name, method in methods.items() if method.trains_alone),
        columns=chosen(config.compare.columns),
    )


def _unfinished(comparison: Comparison, failed: Mapping[str, str]) -> list[str]:
    """Return a sentence on the cells that are neither finished nor failed, if there are any."""
    left = [
        cell
        for cell in comparison.cells
        if cell.name not in failed and not comparison.run_of(cell).is_finished
    ]
    if not left:
        return []
    verb, every = "is" if len(left) == 1 else "are", len(comparison.cells)
    resume = how_to_resume(comparison.folder)
    return [f"{len(left)} of {every} runs {verb} not finished: resume {resume}."]


def _stopping_notes(cells: Mapping[str, RunFolder]) -> list[str]:
    """Return a sentence that names the cells with a stage that stopped early, if there are any."""
    outcomes = {name: run.summary.get("early_stopping", {}).values() for name, run in cells.items()}
    early = [name for name, own in outcomes.items() if any(outcome["stopped_early"] for outcome in own)]
    text = (
        "Stopped early, with all rounds counted in the costs: {} (`summary.json` has the best round of each)."
    )
    return [text.format(listed(early))] if early else []


def listed(cells: Sequence[str]) -> str:
    """Return the names of cells, the first ones if they are many.

    >>> listed(["a-1", "a-2", "a-3", "b-1", "b-2"])
    'a-1, a-2, a-3 and 2 more'
    """
    more = f" and {len(cells) - _SHOWN} more" if len(cells) > _SHOWN else ""
    return ", ".join(cells[:_SHOWN]) + more


def _outcome(run: RunFolder, positions: Positions) -> CellResult:
    """Return the results of a cell; of its table, the values of devices alone."""
    summary = run.summary
    further = [name for name in summary.get("directions", {}) if name != summary["metric"]]
    stages: dict[str, DeviceMetrics] = {line["stage"]: {} for line in run.rounds()}
    stages |= metrics_by_stage(run.devices, "metric", summary, positions)
    onboarded = {"split": summary["split"], "failed": _failed_unseen(summary)}
    kept = ("work", "bytes", "seconds")  # Not the devices, of which there may be many.
    training = [{key: line[key] for key in kept} for line in run.rounds() if line["work"] != "evaluate"]
    return CellResult(
        stages={stage: stages[stage] for stage in Stage if stage in stages},
        rounds=sum(line["work"] == "update" for line in training),
        sent=sum(sum(line["bytes"].values()) for line in training),
        seconds=sum(line["seconds"] for line in training),
        kept=kept_parameters(run),
        examples=training_examples(run.devices, positions),
        further={name: metrics_by_stage(run.devices, name, summary, positions) for name in further},
        unseen=metrics_by_stage(run.unseen, "metric", onboarded, positions),
    )


def _failed_unseen(summary: Summary) -> list[str]:
    """Return the stages in which most unseen devices failed."""
    return [stage for stage, own in summary.get("unseen", {}).items() if "gap" not in own]
