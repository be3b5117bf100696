"""Parts that the page of a run and that of a comparison have in common; what cannot be drawn is said."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from partita.config.provenance import COMMAND
from partita.errors import ConfigError
from partita.report import charts
from partita.report.page import Section
from partita.report.run_facts import Row

_FEW = 5
"""Devices, of which a spread can be drawn."""


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Say which folder it is whose files cannot be read."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"`{folder}` is damaged, a file in it cannot be read: {reason}") from error


def made_by(values: Mapping[str, Any], again: str) -> dict[str, str]:
    """Return what a config says of how a run or comparison was made, and the command that makes it again."""
    versions = dict(values["made_with"])
    typed = versions.pop(COMMAND, "")
    asked = {"The command that made it": typed} if typed else {}
    return asked | {"The command that makes it again, in its folder": again, **versions}


def gained_of(metric: str, direction: str) -> str:
    """Return what a change for the better is called.

    >>> gained_of("accuracy", "up"), gained_of("wer", "down")
    ('change in accuracy', 'decrease in wer')
    """
    return f"{'change' if direction == 'up' else 'decrease'} in {metric}"


def counted(number: int, thing: str) -> str:
    """Return a number of things.

    >>> counted(1, "device"), counted(1200, "device")
    ('1 device', '1,200 devices')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def scattered(devices: Sequence[Row], chart: charts.Chart) -> Section:
    """Return a chart of devices' changes against their training examples, unless all have as many."""
    sizes = {row["examples"] for row in devices if row["gain"] is not None} - {None}
    if len(sizes) > 1:
        return drawn(chart)
    has = (
        f"Every device has {counted(sizes.pop(), 'training example')}" if sizes else "No device says its size"
    )
    return Section(title=chart.title, texts=[f"{has}: nothing to draw a change against."])


def spread(devices: Sequence[Row], gained: str, models: Sequence[str]) -> Section:
    """Return how changes are spread over devices, under those models that have a spread on every split."""
    changes: dict[str, dict[str, list[float]]] = {model: {} for model in models}
    for row in devices:
        if row["gain"] is not None and row["model"] in changes:
            changes[row["model"]].setdefault(row["split"], []).append(row["gain"])
    wide = [model for model in models if changes[model] and all(map(_is_wide, changes[model].values()))]
    few = [model for model in models if model not in wide]
    least = f"at least {_FEW} devices that do not all change alike"
    left_out = f"No spread to draw, which takes {least}: {', '.join(few)}." if few else ""
    if not wide:
        return Section(title="How the change is spread over devices", texts=[left_out])
    shown = [gain for model in wide for gains in changes[model].values() for gain in gains]
    low, high = min(shown), max(shown)
    says = f"How {gained} is spread over devices: from {low:+.4f} to {high:+.4f}. {left_out}".strip()
    return drawn(charts.violins(gained, says, wide, extent=(low, high)))


def _is_wide(gains: Sequence[float]) -> bool:
    return len(gains) >= _FEW and min(gains) < max(gains)


def sizes_of(sizes: Sequence[int]) -> Section:
    """Return how many training examples devices have, drawn where they differ."""
    title = "Training examples of devices"
    if not sizes:
        return Section(title=title, texts=["No device was measured."])
    low, high = min(sizes), max(sizes)
    if low == high:
        each = f"{counted(len(sizes), 'device')}, with {counted(low, 'training example')} each."
        return Section(title=title, texts=[each])
    says = f"{counted(len(sizes), 'device')}, with from {low} to {high} training examples."
    return Section(title=title, chart=charts.histogram(says))


def drawn(chart: charts.Chart) -> Section:
    """Return a part of a page that a chart fills."""
    return Section(title=chart.title, chart=chart)
