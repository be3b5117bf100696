"""Evaluations during training in a comparison, by default: a few devices every few rounds, at little cost."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from partita.config.changes import value_at, with_values
from partita.config.schema import Config
from partita.errors import ConfigError
from partita.studies.cells import Cell

_SHARE = 10
"""One visit in so many, at most, is an evaluation during training."""
_POINTS = 20
"""Evaluations during training that a curve should have."""
_MIN_POINTS = 5
"""A curve has at least so many, whatever the number of devices."""
_DEVICES = 20
"""Devices that each evaluation should have."""


@dataclass(frozen=True)
class Visits:
    """The visits of a cell, without evaluations during training."""

    rounds: Sequence[int]
    """Training rounds, by stage."""
    visits: int
    """Number of visits: training, fine-tuning, and the evaluations at the end of each stage."""
    stopping: int = 0
    """Number of stages that may stop early: they are also evaluated after their last round."""

    def evaluations(self, every: int) -> int:
        """Return the number of evaluations during training; the end of a stage is evaluated anyway."""
        return sum((rounds - 1) // every for rounds in self.rounds if rounds) + self.stopping

    def largest_sample(self, every: int) -> float:
        """Return how many devices each evaluation can have at most, to be few enough of all visits."""
        number = self.evaluations(every)
        return (self.visits - 1) // ((_SHARE - 1) * number) if number else math.inf


def default_evaluations(
    cells: Sequence[Visits], devices: int, sample: int | None = None
) -> tuple[int, int] | None:
    """Return the rounds between evaluations and the number of devices of each, None if there can be none.

    Both are the same for all cells, so that their curves are over the same devices. Less than one visit in
    ten of each cell is an evaluation during training.

    Args:
        cells: the visits of the cells.
        devices: number of evaluated devices.
        sample: number of devices of each evaluation, if it is fixed.

    >>> default_evaluations([Visits([100], 1_000), Visits([200], 5_000)], devices=50)
    (17, 22)
    """
    longest = max((sum(cell.rounds) for cell in cells), default=0)
    for points in range(_POINTS, 0, -1):
        every = max(1, math.ceil(longest / points))
        if not any(cell.evaluations(every) for cell in cells):
            continue
        largest = min(cell.largest_sample(every) for cell in cells)
        wanted = min(devices, _DEVICES) if points > _MIN_POINTS else 1
        if largest >= (sample or wanted):
            return every, sample or int(min(devices, largest))
    return None


def with_evaluations(cells: Sequence[Cell], *, devices: int) -> list[Cell]:
    """Return the cells, evaluated during training where their config does not say how often.

    With early stopping in any cell they are returned as they are: its measurements are curves already, and
    their number and devices decide when training stops.

    Args:
        cells: the cells.
        devices: number of all devices.
    """
    configs = list(_configs(cells))
    if any(config.pretrain.patience or config.personalize.patience for config in configs):
        return list(cells)
    counted = [visits_of(config, devices) for config in configs]
    evaluated = min((_evaluated(config, devices) for config in configs), default=devices)
    given = value_at(cells[0].values, "evaluate.sample")
    chosen = default_evaluations(counted, evaluated, evaluated if given == "all" else given)
    if chosen is None:
        return list(cells)
    every, sample = chosen
    changes = {"evaluate.every": every, "evaluate.sample": sample}
    return [
        replace(cell, values=with_values(cell.values, changes)) if _is_open(cell) else cell for cell in cells
    ]


def visits_of(config: Config, devices: int) -> Visits:
    """Return the visits of a run, without evaluations during training."""
    evaluated = _evaluated(config, devices)
    rounds = (config.pretrain.rounds, config.personalize.rounds)
    finetunes = config.finetune.epochs and config.partition.personal not in ("none", [])
    stages = 1 + bool(config.personalize.rounds) + (2 if finetunes else 0)
    both = (config.pretrain, config.personalize)
    training = sum(each.rounds * (each.devices_per_round + each.over_select) for each in both)
    stopping = sum(bool(each.rounds and each.patience) for each in both)
    return Visits(rounds, training + stages * evaluated, stopping)


def _configs(cells: Sequence[Cell]) -> Iterator[Config]:
    """Yield the configs of the cells that do not say how often they are evaluated."""
    for cell in filter(_is_open, cells):
        with suppress(ConfigError):  # The check of the cell says what is wrong with it.
            yield cell.config(out=Path(), start=Path() if cell.begins_pretrained else None)


def _evaluated(config: Config, devices: int) -> int:
    return devices if config.evaluate.devices == "all" else config.evaluate.devices


def _is_open(cell: Cell) -> bool:
    return value_at(cell.values, "evaluate.every") is None
