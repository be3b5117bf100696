"""Sections that the page of a run and that of a comparison share; a paragraph replaces an empty chart."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from partita.config.provenance import COMMAND
from partita.config.recording import has_task_from_python
from partita.data.arrow import Table, numbers_by, rows_where
from partita.report.charts import devices as device_charts
from partita.report.charts.chart import Chart, Legend
from partita.report.differences import counted
from partita.report.figures import Datum
from partita.report.page import Section
from partita.runs.folder import RunFolder

_MIN_DEVICES = 5
"""The smallest number of devices whose distribution is drawn."""


def reproduction(values: Mapping[str, Any], command: str) -> dict[str, str]:
    """Return how a run or comparison was made: the commands to make it again, if any, and versions.

    No command makes a task again that was created in Python.
    """
    versions = dict(values["made_with"])
    commands = {
        "Original command": versions.pop(COMMAND, ""),
        "Command to reproduce it, in this folder": "" if has_task_from_python(values) else command,
    }
    return {name: text for name, text in commands.items() if text} | versions


def setup_line(runs: Sequence[RunFolder]) -> str:
    """Return the task, the model, the devices and their test examples, of runs on the same data."""
    values = runs[0].values
    task, model = values["task"], values.get("model", {}).get("name")
    name = "a task from Python" if has_task_from_python(values) else task["kind"]
    data = f" from {Path(task['data']).name}" if "data" in task else ""
    stages = [run.values[stage] for run in runs for stage in ("pretrain", "personalize")]
    sizes = sorted({stage["devices_per_round"] for stage in stages if stage["rounds"]})
    rounds = (
        f"{' or '.join(f'{size:,}' for size in sizes)} {'device' if sizes == [1] else 'devices'} per round"
    )
    split = runs[0].summary.get("split", "test")
    seen, unseen = (examples_in(table, split) for table in (runs[0].devices, runs[0].unseen))
    devices = counted(len(seen) + len(unseen), "device")
    if values["evaluate"]["devices"] != "all":
        devices += " evaluated"
    if unseen:
        devices += f" ({len(seen):,} seen, {len(unseen):,} unseen)"
    examples = counted(sum([*seen, *unseen]), f"{split} example")
    parts = (
        f"{name}{data}",
        model and f"model {model}",
        devices,
        rounds if sizes else "",
        f"{examples} in total",
    )
    return " · ".join(filter(None, parts))


def examples_in(table: Table, split: str) -> list[int]:
    """Return the number of examples of each device that has any on a split."""
    return numbers_by(rows_where(table, "split", value=split), "device", "examples")


def sizes_of(examples: Iterable[int]) -> list[Datum]:
    """Return the data of the histogram of training examples: how many devices have how many."""
    return [{"examples": size, "devices": count} for size, count in sorted(Counter(examples).items())]


def change_of(metric: str, direction: str) -> str:
    """Return the name of a change of a metric, positive if it is an improvement.

    >>> change_of("accuracy", "up"), change_of("wer", "down")
    ('change in accuracy', 'decrease in wer')
    """
    return f"{'change' if direction == 'up' else 'decrease'} in {metric}"


def chart_section(chart: Chart) -> Section:
    """Return a section with a chart."""
    return Section(title=chart.title, chart=chart)


def scatter_section(devices: Sequence[Datum], chart: Chart) -> Section:
    """Return the chart of changes by number of training examples, unless all devices have the same."""
    sizes = {datum["examples"] for datum in devices if datum["change"] is not None} - {None}
    if len(sizes) > 1:
        return chart_section(chart)
    reason = "The number of training examples of the devices is not known."
    if sizes:
        reason = f"Every device has {counted(sizes.pop(), 'training example')}: nothing to draw."
    return Section(title=chart.title, paragraphs=[reason])


def distribution_section(devices: Sequence[Datum], change: str, legend: Legend, note: str = "") -> Section:
    """Return violins of the models whose changes vary, and name the other models.

    Args:
        devices: the data of all devices.
        change: the name of a change of the metric.
        legend: the models to draw, and the color of each.
        note: further sentences of the caption.
    """
    models = legend.shown
    # Only devices on the split that is reported have a rank.
    reported, train = (
        {model: _changes(model, devices, of) for model in models}
        for of in (lambda datum: datum["rank"] is not None, lambda datum: datum["split"] == "train")
    )
    drawn = [model for model in models if _varies(reported[model])]
    missing = ", ".join(model for model in models if model not in drawn)
    needs = f"fewer than {_MIN_DEVICES} devices, or the same change on all of them"
    omitted = f"Not drawn ({needs}): {missing}." if missing else ""
    if not drawn:
        return Section(title=device_charts.DISTRIBUTION, paragraphs=[omitted])
    on_train = [model for model in drawn if _varies(train[model])]
    values = [value for model in drawn for value in reported[model]]
    caption = f"Distribution of the {change} over devices, from {min(values):+.4f} to {max(values):+.4f}. "
    caption += "A violin ends at its model's lowest and highest device."
    caption += " Left half, gray: the same on the train split." if on_train else ""
    caption += f" {omitted}".rstrip() + note
    chart = device_charts.violins(change, caption, replace(legend, shown=drawn), on_train=on_train)
    return chart_section(chart)


def _changes(model: str, devices: Sequence[Datum], of: Callable[[Datum], bool]) -> list[float]:
    """Return the changes of devices under a model, of some data."""
    return [d["change"] for d in devices if d["model"] == model and d["change"] is not None and of(d)]


def _varies(changes: Sequence[float]) -> bool:
    return len(changes) >= _MIN_DEVICES and min(changes) < max(changes)


def examples_section(examples: Sequence[int]) -> Section:
    """Return the histogram of training examples per device, unless all devices have the same number."""
    if not examples:
        return Section(title=device_charts.EXAMPLES, paragraphs=["No device was evaluated."])
    low, high = min(examples), max(examples)
    devices = counted(len(examples), "device")
    if low == high:
        return Section(
            title=device_charts.EXAMPLES,
            paragraphs=[f"{devices} with {counted(low, 'training example')} each."],
        )
    middle = _median_text(examples)
    return chart_section(
        device_charts.histogram(f"{devices} with {low:,} to {high:,} training examples, {middle}.")
    )


def _median_text(examples: Sequence[int]) -> str:
    """Return the median in words.

    >>> _median_text([1, 2, 10]), _median_text([1, 2])
    ('a median of 2', 'a median of 1.5')
    """
    return f"a median of {median(examples):,.1f}".removesuffix(".0")
