"""Warnings of a search: trials that are as good as the best, and devices that it does not evaluate."""

import logging
from collections.abc import Iterator, Sequence

from partita.config.schema import Config
from partita.runs.folder import RunFolder
from partita.studies.statistics import DeviceMetrics, paired_difference
from partita.studies.trials import Trial
from partita.studies.tuning import Tuning, folder_of
from partita.tasks.metrics import Direction
from partita.tasks.task import Task
from partita.tasks.validation import without_validation

logger = logging.getLogger(__name__)

_SHOWN = 10
"""Devices that a warning lists."""


def warn_of_equals(
    tuning: Tuning, finished: Sequence[Trial], best: Trial, direction: Direction
) -> Iterator[str]:
    """Yield a sentence if some trials differ from the best by no more than the standard error."""
    own, near = _metrics(tuning, best), list[str]()
    for trial in finished:
        pair = paired_difference([own], [_metrics(tuning, trial)], direction)
        if trial != best and pair and pair.standard_error is not None and pair.value <= pair.standard_error:
            near.append(f"{trial.number} ({pair.value:.4f}, standard error {pair.standard_error:.4f})")
    if near:
        yield (
            "These trials are worse than the best by no more than the standard error of the difference, "
            f"paired over devices: {', '.join(near)}."
        )


def _metrics(tuning: Tuning, trial: Trial) -> DeviceMetrics:
    """Return the metric and the weight of each device after the last stage of a finished trial."""
    run = RunFolder(tuning.folder / folder_of(trial.number))
    last = list(run.summary["stages"])[-1]
    rows = run.devices.select(["stage", "device", "split", "metric", "weight"]).to_pylist()
    own = [row for row in rows if (row["stage"], row["split"]) == (last, "validation")]
    return {row["device"]: (row["metric"], row["weight"]) for row in own if row["metric"] is not None}


def warn_of_unmeasured(task: Task, config: Config) -> None:
    """Log the evaluated devices that have no validation rows: only the final run evaluates them."""
    seen, _ = config.evaluate.divide(task.devices.ids)
    positions = config.evaluate.positions(len(seen), seed=config.seed)
    if lacking := without_validation(task, (seen[position] for position in positions)):
        logger.warning(
            "%d of %d devices have no validation rows, so the search does not evaluate them: %s.",
            len(lacking),
            len(positions),
            ", ".join([*lacking[:_SHOWN], *(["..."] if len(lacking) > _SHOWN else [])]),
        )
