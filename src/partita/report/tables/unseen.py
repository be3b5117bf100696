"""The table `unseen`: devices that training has seen beside those that it has not, with the gap."""

from collections.abc import Iterator, Mapping
from typing import Any

from partita.report.differences import MetricsBySeed
from partita.report.models import EvaluatedModel, evaluated_models
from partita.report.tables.entries import Entry, Signed
from partita.report.tables.means import mean_std, over_seeds
from partita.report.tables.models import last, last_unseen
from partita.report.tables.table import Table
from partita.runs.folder import RunFolder
from partita.runs.warnings import few_unseen
from partita.studies.results import Results
from partita.studies.statistics import mean_of
from partita.tasks.metrics import Direction

_GAP = (
    "Unseen devices took no part in training. A personal part begins at its start, and fine-tuning trains it "
    "on their own training examples. Gap: the weighted mean over seen devices minus that over unseen ones, "
    "positive if unseen devices are worse."
)


def run_unseen_table(run: RunFolder) -> Table:
    """Return the models of a finished run, on seen and on unseen devices; without rows if all are seen."""
    summary = run.summary
    models = evaluated_models(run) if "unseen" in summary else []
    found = [(model, _of_unseen(model)) for model in models]
    rows: list[list[Entry]] = [
        [
            model.title,
            model.statistics["weighted_mean"],
            own.get("weighted_mean"),
            Signed(own["gap"]) if "gap" in own else None,
            model.statistics["devices"],
            own["devices"] if "gap" in own else 0,
        ]
        for model, own in found
    ]
    return Table(
        name="unseen",
        title=_title(summary.get("split", "test"), summary["metric"], summary["direction"]),
        columns=["model", "seen", "unseen", "gap", "seen devices", "unseen devices"],
        rows=rows,
        notes=[
            *(_GAP, *few_unseen(len(run.unseen["device"].unique()))),
            *(note for model, own in found for note in _failed(model, own)),
        ],
    )


def _of_unseen(model: EvaluatedModel) -> Mapping[str, Any]:
    return model.run.summary["unseen"].get(model.stage, {})


def _failed(model: EvaluatedModel, own: Mapping[str, Any]) -> Iterator[str]:
    """Yield how many unseen devices failed under a model."""
    if count := own.get("failed"):
        devices = "1 unseen device" if count == 1 else f"{count} unseen devices"
        reason = f" ({own['reason'].rstrip('.')})" if "reason" in own else ""
        yield f"Warning: {model.title} failed on {devices}{reason}."


def comparison_unseen_table(results: Results) -> Table:
    """Return the methods of a comparison after their last stage; without rows if all devices are seen."""
    rows: list[list[Entry]] = []
    most = 0
    for (method, partition), runs in results.outcomes.items():
        if unseen := last_unseen(runs):
            seen = {seed: values for seed, values in last(runs).items() if seed in unseen}
            gap = _gap(seen, unseen, results.direction)
            devices = max(map(len, unseen.values()))
            most = max(most, devices)
            rows.append([
                *(results.titles[method], partition, mean_std(seen), mean_std(unseen), gap, devices)
            ])  # fmt: skip
    return Table(
        name="unseen",
        title=_title(results.split, results.metric, results.direction),
        columns=["method", "personal part", "seen", "unseen", "gap", "unseen devices"],
        rows=rows,
        notes=[
            f"{_GAP} Means over seeds, ± their standard deviation. A method that trains every device alone "
            "treats both alike: its gap shows how much harder the unseen devices are.",
            *few_unseen(most),
        ],
    )


def _gap(seen: MetricsBySeed, unseen: MetricsBySeed, direction: Direction) -> Signed:
    """Return how much worse unseen devices are than seen ones, over seeds."""
    sign = 1 if direction == "up" else -1
    found = over_seeds([sign * (mean_of(seen[seed]) - mean_of(unseen[seed])) for seed in unseen])
    return Signed(found.mean, found.std)


def _title(split: str, metric: str, direction: str) -> str:
    better = {"up": "higher", "down": "lower"}[direction]
    return f"Seen and unseen devices: {split} {metric} ({better} is better)"
