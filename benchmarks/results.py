"""The results: `benchmarks/results/latest.json`, the same as Markdown, and the tables that pages quote.

Each module's rows are kept with the date and the machine that they were measured on, because some modules can
be run again alone. `python benchmarks/results.py` writes the Markdown again from the JSON.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "results"
LATEST = FOLDER / "latest.json"
README, DOCS = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- generated: by `make bench` -->", "<!-- end -->"
NOTHING = "No results have been recorded yet: `make bench` writes them here."

Measured = Mapping[str, Any]
"""The rows of a module (`rows`), their `date` and their `machine`."""
Results = Mapping[str, Measured]
"""What was measured, by module."""


def read() -> Results:
    """Return the latest results, nothing if there are none."""
    return json.loads(LATEST.read_text()) if LATEST.exists() else {}


def write(results: Results) -> None:
    """Write results as JSON and Markdown, and into the pages that quote them."""
    FOLDER.mkdir(exist_ok=True)
    LATEST.write_text(json.dumps(results, indent=1) + "\n")
    LATEST.with_suffix(".md").write_text(f"# Benchmark\n\n{full_block(results)}\n")
    README.write_text(quoted(README.read_text(), short_block(results)))
    DOCS.write_text(quoted(DOCS.read_text(), full_block(results)))


def quoted(page: str, block: str) -> str:
    """Return a page with another text between its two marks."""
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    page, count = pattern.subn(lambda _: f"{BEGIN}\n\n{block}\n\n{END}", page)
    if count != 1:
        raise ValueError(f"The page needs one place between `{BEGIN}` and `{END}`, it has {count}.")
    return page


def short_block(results: Results) -> str:
    """Return the machine and a table of results against targets; of predictions, only the worst."""
    rows = worst_predictions(rows_of(results))
    cells = [[*named(row), result_text(row), target_text(row), met_text(row)] for row in rows]
    table = markdown(["workload", "against", "result", "target", "met"], cells)
    return f"{where(results)}\n\n{table}" if cells else NOTHING


def full_block(results: Results) -> str:
    """Return the machine and a table with the measured figures."""
    names = ["workload", "against", "Partita", "other", "result", "target", "met", "share of the limit"]
    cells = [
        [
            *named(row),
            figure(row["ours"], row["unit"]),
            figure(row["other"], row["unit"]),
            *(result_text(row), target_text(row), met_text(row)),
            "" if row["share"] is None else _percent(row["share"]),
        ]
        for row in rows_of(results)
    ]
    return f"{where(results)}\n\n{markdown(names, cells)}" if cells else NOTHING


def rows_of(results: Results) -> list[Mapping[str, Any]]:
    """Return the rows of all modules."""
    return [row for measured in results.values() for row in measured["rows"]]


def worst_predictions(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return rows, of those that compare one kind of figure with its prediction only the worst one."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["goal"] == "within" and row["figure"] is not None:
            kinds.setdefault(row["workload"].partition(":")[0], []).append(row)
    worst = {kind: max(some, key=lambda row: row["figure"]) for kind, some in kinds.items()}
    chosen = []
    for row in rows:
        kind, _, case = row["workload"].partition(":")
        if row is worst.get(kind):
            chosen.append({**row, "workload": f"{kind}: the worst of {len(kinds[kind])} cases,{case}"})
        elif row["goal"] != "within" or row["figure"] is None:
            chosen.append(row)
    return chosen


def where(results: Results) -> str:
    """Return a sentence on each run: its date, its machine, and its modules if there were several runs."""
    runs: dict[str, list[str]] = {}
    for module, measured in results.items():
        machine = measured["machine"]
        text = (
            f"Measured on {measured['date']}: {machine['cpu']} ({machine['capability']}), {machine['cores']} "
            f"cores, {machine['system']}, Python {machine['python']}, torch {machine['torch']}, one core "
            f"multiplies matrices at {machine['gemm'] / 1e9:.0f} GFLOP/s"
        )
        runs.setdefault(text, []).append(module)
    if len(runs) == 1:
        return f"{next(iter(runs))}."
    return "\n".join(f"- {text} ({', '.join(modules)})." for text, modules in runs.items())


def named(row: Mapping[str, Any]) -> list[str]:
    """Return the first cells of a row."""
    return [row["workload"], row["against"]]


def result_text(row: Mapping[str, Any]) -> str:
    """Return the number that the target is about."""
    if row["figure"] is None:
        return f"not measured: {row['skipped']}"
    return _about(row["goal"], row["figure"], row["unit"])


def target_text(row: Mapping[str, Any]) -> str:
    """Return the target."""
    bound = "at least" if row["goal"] == "faster" else "at most"
    return f"{bound} {_about(row['goal'], row['target'], row['unit'])}"


def met_text(row: Mapping[str, Any]) -> str:
    """Return whether the target is met."""
    return {True: "yes", False: "**no**", None: ""}[row["met"]]


def _about(goal: str, value: float, unit: str) -> str:
    match goal:
        case "faster":
            return f"{value:.3g}x faster"
        case "slower":
            return f"{value:.3g}x its time"
        case "within":
            return f"{value:.3g} % difference"
        case _:
            return figure(value, unit)


def figure(value: float | None, unit: str) -> str:
    """Return a measured figure with its unit, nothing where there is none.

    >>> figure(0.01234, "s"), figure(1234.5, "s"), figure(80.0, "bytes a device"), figure(None, "s")
    ('12.3 ms', '1,234 s', '80 bytes a device', '')
    """
    if value is None:
        return ""
    if unit == "s" and value < 1:
        return f"{1000 * value:.3g} ms"
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"


def _percent(share: float) -> str:
    """Return a share in percent with two digits, such as 1.3 % or 180 %."""
    return f"{float(f'{share:.2g}'):g} %"


def markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


if __name__ == "__main__":
    write(read())
