"""Tables for the terminal."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from partita.report.sheets import Entry, Sheet
from partita.training.evaluation import Summary

_UNITS = ("B", "kB", "MB", "GB", "TB")


def models_sheet(summary: Summary, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Sheet:
    """Return how each model does on all devices' examples of a split: a name and its statistics a row."""
    better, worst = {"up": ("higher", "min"), "down": ("lower", "max")}[summary["direction"]]
    devices = max((statistics["devices"] for _, statistics in rows), default=0)
    split = summary.get("split", "test").capitalize()
    entries: list[list[Entry]] = []
    for place, (name, statistics) in enumerate(rows):
        numbers = [statistics[key] for key in ("weighted_mean", "mean", "std", worst)]
        counts = [statistics[key] if place else "" for key in ("helped", "hurt")]
        entries.append([name, *numbers, *counts])
    return Sheet(
        name="models",
        title=f"{split} {summary['metric']} over {devices} devices ({better} is better)",
        columns=["model", "weighted mean", "mean", "std", "worst", "helped", "hurt"],
        rows=entries,
    )


def costs_table(model: str, devices: int, partitions: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return what each partition of a model costs, a row each."""
    table = Table(title=escape(f"Partitions of {model} ({devices:,} devices)"), box=SIMPLE_HEAD)
    table.add_column("partition", no_wrap=True)
    parts = ("personal", "shared", "frozen")
    shown = [p for p in parts if p != "frozen" or any(costs.get(p) for costs in partitions.values())]
    sizes = {"up_bytes": "up", "down_bytes": "down", "disk_bytes": "on disk", "memory_bytes": "memory"}
    for column in (*shown, *sizes.values()):
        table.add_column(column, justify="right", no_wrap=True)
    for name, costs in partitions.items():
        counts = [_span(costs, part, "{:,}".format) for part in shown]
        table.add_row(escape(name), *counts, *(_span(costs, key, bytes_text) for key in sizes))
    return table


def costs_notes(partitions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what there is to say below a table of costs, each thing once."""
    notes = ["up, down: of one device in a round; on disk: of all devices; memory: to train"]
    reasons: dict[str, list[str]] = {}
    for name, costs in partitions.items():
        if "error" in costs:
            notes.append(f"{name}: {costs['error']}")
        elif "reason" in costs:
            reasons.setdefault(costs["reason"], []).append(name)
    notes += [f"No memory for {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return notes


def _span(costs: Mapping[str, Any], key: str, text: Callable[[Any], str]) -> str:
    """Return a cost, from the least to the most where it differs by device."""
    values = [size[key] for size in costs.get("sizes", [costs]) if size.get(key) is not None]
    if key == "disk_bytes" and values:
        values = [costs[key]]
    if not values:
        return "-"
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low}-{high}"


def bytes_text(count: int) -> str:
    """Return a number of bytes with three digits that count.

    >>> [bytes_text(count) for count in (0, 999, 153_128, 71_300_000)]
    ['0 B', '999 B', '153 kB', '71.3 MB']
    """
    unit = max(power for power in range(5) if power == 0 or count >= 1000**power)
    value = count / 1000**unit
    return f"{value:.0f} {_UNITS[unit]}" if value >= 100 or not unit else f"{value:.3g} {_UNITS[unit]}"
