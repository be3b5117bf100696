"""Tables for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from partita.evaluation import Summary


def models_table(summary: Summary, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Return how each model does on the devices' test examples: a name and its statistics a row."""
    better, worst = {"up": ("higher", "min"), "down": ("lower", "max")}[summary["direction"]]
    devices = max((statistics["devices"] for _, statistics in rows), default=0)
    title = f"Test {summary['metric']} over {devices} devices ({better} is better)"
    table = Table(title=escape(title), box=SIMPLE_HEAD)
    table.add_column("model", no_wrap=True)
    for column in ("weighted mean", "mean", "std", "worst", "helped", "hurt"):
        table.add_column(column, justify="right")
    for place, (name, statistics) in enumerate(rows):
        numbers = [_number(statistics[key]) for key in ("weighted_mean", "mean", "std", worst)]
        counts = [str(statistics[key]) if place else "" for key in ("helped", "hurt")]
        table.add_row(escape(name), *numbers, *counts)
    return table


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"


def counts_table(partitions: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return how many parameters each partition makes personal, shared and frozen."""
    parts = ("personal", "shared", "frozen")
    table = Table(title="Parameters by partition", box=SIMPLE_HEAD)
    table.add_column("partition")
    for part in parts:
        table.add_column(part, justify="right")
    for name, counts in partitions.items():
        table.add_row(escape(name), *(f"{counts[part]:,}" if part in counts else "-" for part in parts))
    errors = [f"{name}: {counts['error']}" for name, counts in partitions.items() if "error" in counts]
    table.caption = escape("\n".join(errors)) or None
    return table
