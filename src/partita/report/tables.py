"""Tables for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from partita.evaluation import Summary


def models_table(summary: Summary, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Return how each model does on the devices' test examples: a name and its statistics a row."""
    better = {"up": "higher is better", "down": "lower is better"}[summary["direction"]]
    devices = max((statistics["devices"] for _, statistics in rows), default=0)
    table = Table(title=f"Test {summary['metric']} over {devices} devices ({better})", box=SIMPLE_HEAD)
    table.add_column("model", no_wrap=True)
    for column in ("weighted mean", "mean", "std", "min", "helped", "hurt"):
        table.add_column(column, justify="right")
    for name, statistics in rows:
        numbers = [statistics[key] for key in ("weighted_mean", "mean", "std", "min")]
        counts = [str(statistics["helped"]), str(statistics["hurt"])] if name != rows[0][0] else ["", ""]
        table.add_row(name, *(f"{number:.4f}" for number in numbers), *counts)
    return table


def counts_table(partitions: Mapping[str, Mapping[str, int]]) -> Table:
    """Return how many parameters each partition makes personal, shared and frozen."""
    table = Table(title="Parameters by partition", box=SIMPLE_HEAD)
    table.add_column("partition")
    for column in ("personal", "shared", "frozen"):
        table.add_column(column, justify="right")
    for name, counts in partitions.items():
        table.add_row(name, *(f"{counts[column]:,}" for column in ("personal", "shared", "frozen")))
    return table
