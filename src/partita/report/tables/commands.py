"""Tables that commands print: the models of a run, costs of partitions, trials of a search, a forecast."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich import table as rich_table
from rich.box import SIMPLE_HEAD
from rich.markup import escape

from partita.report.differences import counted
from partita.report.tables.entries import Entry, MeanStd, Rounded
from partita.report.tables.table import Table
from partita.shown import shown
from partita.studies.forecast import Forecast
from partita.studies.trials import Tuned
from partita.training.evaluation import Summary

_UNITS = ("B", "kB", "MB", "GB", "TB")


def models_table(
    summary: Summary, models: Sequence[tuple[str, Mapping[str, Any]]], warnings: Sequence[str] = ()
) -> Table:
    """Return the statistics over devices of each model, given by title; none for a stage that failed.

    Args:
        summary: names the metric and its direction.
        models: the models.
        warnings: sentences without their full stop, for the notes.
    """
    better, worst = {"up": ("higher", "min"), "down": ("lower", "max")}[summary["direction"]]
    devices = max((statistics["devices"] for _, statistics in models), default=0)
    split = summary.get("split", "test").capitalize()
    has_reference = bool(models) and "mean" in models[0][1]
    has_failed = any(statistics.get("failed") for _, statistics in models)
    rows: list[list[Entry]] = []
    for place, (title, statistics) in enumerate(models):
        numbers = [statistics.get(key) for key in ("weighted_mean", "mean", "std", worst)]
        counts = [statistics.get(key) if place and has_reference else "" for key in ("helped", "hurt")]
        rows.append([title, *numbers, *counts, *([statistics.get("failed", 0)] if has_failed else [])])
    columns = ["model", "weighted mean", "mean", "std", "worst", "helped", "hurt"]
    return Table(
        name="models",
        title=f"{split} {summary['metric']} over {counted(devices, 'device')} ({better} is better)",
        columns=[*columns, *(["failed"] if has_failed else [])],
        rows=rows,
        notes=[*_stopping_notes(summary), *(f"Warning: {warning}." for warning in warnings)],
    )


def _stopping_notes(summary: Summary) -> Iterator[str]:
    """Yield a sentence for each stage that could stop early.

    >>> outcome = {"planned_rounds": 100, "rounds": 60, "best_round": 40, "stopped_early": True}
    >>> list(_stopping_notes({"early_stopping": {"personalized": outcome}}))
    ['The stage `personalized` stopped after round 60 of 100, best round 40.']
    """
    for stage, outcome in summary.get("early_stopping", {}).items():
        rounds, planned, best = (outcome[key] for key in ("rounds", "planned_rounds", "best_round"))
        if best is None:
            yield f"The stage `{stage}` could not stop early: no evaluated device has a validation metric."
        elif outcome["stopped_early"]:
            yield f"The stage `{stage}` stopped after round {rounds} of {planned}, best round {best}."
        else:
            yield f"The stage `{stage}` did not stop early, best round {best} of {planned}."


def trials_table(tuned: Tuned) -> Table:
    """Return all trials of a search, the best one marked."""
    keys = list(tuned.best.choice)
    rows: list[list[Entry]] = [
        [
            str(trial.number),
            *(str(trial.choice[key]) for key in keys),
            None if trial.value is None else MeanStd(trial.value, is_best=trial.number == tuned.best.number),
            trial.status,
        ]
        for trial in tuned.trials
    ]
    return Table(
        name="trials",
        title=f"Validation {tuned.metric} of {counted(len(rows), 'trial')}",
        columns=["trial", *keys, tuned.metric, "status"],
        rows=rows,
        notes=[f"Warning: {warning}" for warning in tuned.warnings],
    )


def forecast_table(forecast: Forecast) -> Table:
    """Return the runs of a comparison and the expected time of each."""
    rows: list[list[Entry]] = [
        [
            each.cell.name,
            forecast.titles[each.cell.method] if each.cell.method else "pretraining",
            each.cell.partition,
            None if each.seconds is None else Rounded(each.seconds),
        ]
        for each in forecast.cells
    ]
    runs = "1 run" if len(rows) == 1 else f"{len(rows)} runs"
    workers = forecast.workers
    time = _time(forecast.seconds / workers)
    tuning = f" and {_time(forecast.tuning / workers)} for {counted(forecast.trials, 'trial')} per method"
    how = "in one process" if workers == 1 else f"with {workers} workers"
    shared = f"Seconds are processor time, which {workers} workers share: each has a core of its own."
    return Table(
        name="forecast",
        title=f"{runs}: about {time}{tuning if forecast.trials else ''} {how}",
        columns=["run", "method", "personal part", "seconds"],
        rows=rows,
        notes=[
            *forecast.notes,
            *([shared] if workers > 1 else []),
            *([] if all(row[-1] for row in rows) else ["No time: all devices failed in the short trial."]),
        ],
    )


def _time(seconds: float) -> str:
    """Return a duration in a readable unit.

    >>> [_time(seconds) for seconds in (7.4, 150, 20_000)]
    ['7 seconds', '2 minutes', '5.6 hours']
    """
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


def costs_table(model: str, devices: int, partitions: Mapping[str, Mapping[str, Any]]) -> rich_table.Table:
    """Return the costs of each partition of a model, for the terminal."""
    table = rich_table.Table(
        title=escape(shown(f"Partitions of {model} ({devices:,} devices)")), box=SIMPLE_HEAD
    )
    table.add_column("partition", no_wrap=True)
    parts = ("personal", "shared", "frozen")
    known = [p for p in parts if p != "frozen" or any(costs.get(p) for costs in partitions.values())]
    sizes = {"up_bytes": "up", "down_bytes": "down", "disk_bytes": "on disk", "memory_bytes": "memory"}
    for column in (*known, *sizes.values()):
        table.add_column(column, justify="right", no_wrap=True)
    for name, costs in partitions.items():
        counts = [_range(costs, part, "{:,}".format) for part in known]
        table.add_row(escape(shown(name)), *counts, *(_range(costs, key, bytes_text) for key in sizes))
    return table


def server_notes(server: Mapping[str, int]) -> list[str]:
    """Return a sentence for each section of a config in which the server holds changes of devices.

    >>> server_notes({"personalize": 12_000_000})
    ['In `personalize`, the server holds changes of several devices at once: 12 MB.']
    """
    held = "the server holds changes of several devices at once"
    return [f"In `{name}`, {held}: {bytes_text(size)}." for name, size in server.items()]


def method_notes(method: Mapping[str, Any]) -> list[str]:
    """Return sentences on what a method keeps, sends and declares, none where it declares nothing.

    >>> own = {"keeps": {"age": []}, "sends": {}, "declares": {"weighs": "the weight"}}
    >>> method_notes({"name": "mine", **own})
    ['`mine` keeps on a device, besides v: `age` (1).', '`mine` declares: `weighs` (the weight).']
    """
    name, places = method["name"], {"keeps": "on a device, besides v", "sends": "besides the change of u"}
    notes = []
    for verb, place in places.items():
        if method[verb]:
            tensors = [f"`{tensor}` ({_shape(shape)})" for tensor, shape in method[verb].items()]
            notes.append(f"`{name}` {verb} {place}: {', '.join(tensors)}.")
    if method["declares"]:
        seams = ", ".join(f"`{seam}` ({meaning})" for seam, meaning in method["declares"].items())
        notes.append(f"`{name}` declares: {seams}.")
    return notes


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "1"


def costs_notes(partitions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the notes below a table of costs, the same reason only once."""
    notes = [
        "up, down: traffic of one device per round; on disk: personal parts of all devices; memory: to train "
        "on one example"
    ]
    reasons: dict[str, list[str]] = {}
    for name, costs in partitions.items():
        if "error" in costs:
            notes.append(f"{name}: {costs['error']}")
            continue
        notes += [
            f"{name}: `{tensor}` is tied in the model and gets a copy of its own, {count:,} more parameters "
            "on each device"
            for tensor, count in costs.get("untied", {}).items()
        ]
        if "reason" in costs:
            reasons.setdefault(costs["reason"], []).append(name)
    notes += _reuse_notes(partitions)
    notes += [f"Memory is not known for {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return notes


def _reuse_notes(partitions: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what is computed only once in each partition, and in which nothing is.

    >>> found = {"personal": {"begins": "fc", "kept_bytes": 5184}, "shared": {"reason": "..."}}
    >>> list(_reuse_notes({"output": {"reuse": found}, "none": {"reuse": {"shared": {"reason": "..."}}}}))[0]
    'output: in several passes over v, what precedes `fc` is computed once, 5.18 kB kept per example'
    """
    without: list[str] = []
    for name, costs in partitions.items():
        plans = {part: each for part, each in costs.get("reuse", {}).items() if "begins" in each}
        if "reuse" in costs and not plans:
            without.append(name)
        for part, each in plans.items():
            what = f"what precedes `{each['begins']}`" if each["begins"] else "the whole output"
            symbol, size = "v" if part == "personal" else "u", bytes_text(each["kept_bytes"])
            yield f"{name}: in several passes over {symbol}, {what} is computed once, {size} kept per example"
    if without:
        yield f"Everything is computed in every pass: {', '.join(without)}"


def _range(costs: Mapping[str, Any], key: str, text: Callable[[Any], str]) -> str:
    """Return a cost; its minimum and maximum if it differs between devices."""
    values = [size[key] for size in costs.get("sizes", [costs]) if size.get(key) is not None]
    if key == "disk_bytes" and values:
        values = [costs[key]]
    if not values:
        return "-"
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low}-{high}"


def bytes_text(count: int) -> str:
    """Return a number of bytes with three significant digits.

    >>> [bytes_text(count) for count in (0, 999, 153_128, 71_300_000)]
    ['0 B', '999 B', '153 kB', '71.3 MB']
    """
    unit = max(power for power in range(5) if power == 0 or count >= 1000**power)
    value = count / 1000**unit
    return f"{value:.0f} {_UNITS[unit]}" if value >= 100 or not unit else f"{value:.3g} {_UNITS[unit]}"
