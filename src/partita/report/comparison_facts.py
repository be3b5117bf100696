"""What a comparison says of every device and round, put side by side: means over seeds and their range."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.data.arrow import read_table
from partita.protocol import DeviceId, Stage
from partita.report.run_facts import Row, ranked, training_of
from partita.runs.folder import RunFolder
from partita.studies.cells import LOCAL, START, has_nothing_personal
from partita.studies.compare import Comparison
from partita.studies.results import Results, collect
from partita.studies.results import Row as Key
from partita.studies.statistics import mean_of

Place = tuple[DeviceId, str]
"""A device and a split."""
BySeed = Mapping[int, Mapping[Place, Row]]
WHOLE = "the whole model"
"""What stands for the part where a method has none to choose."""


@dataclass(frozen=True)
class Compared:
    """All that a page shows of a comparison."""

    comparison: Comparison
    results: Results
    examples: Mapping[DeviceId, int]
    """How many training examples devices have."""

    @property
    def sign(self) -> float:
        """What makes a change for the better positive."""
        return {"up": 1.0, "down": -1.0}[self.results.direction]

    @property
    def reference(self) -> Key:
        """The row that others are compared with."""
        return self.results.reference, ""

    @property
    def drawn(self) -> list[Key]:
        """The rows whose change is drawn: training alone not where it is so bad that it hides all others."""
        rows = [row for row in self.results.outcomes if row != self.reference]
        if self.reference not in self.results.outcomes:
            return rows
        others = [abs(self.gain(row)) for row in rows if row[0] != LOCAL]
        return [row for row in rows if row[0] != LOCAL or self.gain(row) >= -max(others, default=math.inf)]

    @property
    def methods(self) -> list[str]:
        """What methods are called, in the order of their colors, what is not drawn last."""
        return self.titled([*self.drawn, *self.results.outcomes])

    def titled(self, rows: Iterable[Key]) -> list[str]:
        """Return what the methods of rows are called, each once."""
        return list(dict.fromkeys(self.results.titles[row[0]] for row in rows))

    def name(self, row: Key) -> str:
        """Return what a row is called."""
        title = self.results.titles[row[0]]
        return f"{title} ({row[1]})" if row[1] else title

    def mean(self, row: Key) -> float:
        """Return the mean of a row over devices and seeds, after its last stage."""
        return statistics.fmean(mean_of(outcome.last) for outcome in self.results.outcomes[row].values())

    def gain(self, row: Key) -> float:
        """Return how much better a row is than what it is compared with."""
        return self.sign * (self.mean(row) - self.mean(self.reference))

    def points(self) -> list[Row]:
        """Return a row a model of which devices have a part of their own: how large it is, and its change."""
        if self.reference not in self.results.outcomes:
            return []
        points = [
            {
                "model": self.name(row),
                "method": self.results.titles[row[0]],
                "part": row[1] or WHOLE,
                "kept": max(outcome.kept for outcome in self.results.outcomes[row].values()),
                "gain": self.gain(row),
            }
            for row in self.drawn
            if not has_nothing_personal(row[0])
        ]
        return [point for point in points if point["kept"]]

    def rounds(self) -> list[Row]:
        """Return a row a method, part and round of training: the loss, the mean over seeds."""
        found: list[Row] = []
        for row in self.results.outcomes:
            losses: dict[int, list[float]] = {}
            for folder in self._folders(row).values():
                for line in training_of(folder):
                    if line["work"] == "update" and line["loss"] is not None:
                        losses.setdefault(line["round"] + 1, []).append(line["loss"])
            own = {
                "model": self.name(row),
                "method": self.results.titles[row[0]],
                "part": "pretraining" if row[0] == START else row[1] or WHOLE,
            }
            found += [{**own, "round": at, "loss": statistics.fmean(each)} for at, each in losses.items()]
        return found

    def sizes(self) -> list[Row]:
        """Return how many training examples each device has."""
        return [{"device": device, "examples": examples} for device, examples in self.examples.items()]

    def devices(self) -> list[Row]:
        """Return a row a method, device and split: means over seeds, with the least and the most of any."""
        before = self._measured(self.reference)
        found: list[Row] = []
        for row in sorted(self.results.outcomes, key=lambda row: row != self.reference):
            by_seed = self._measured(row)
            places = dict.fromkeys(place for seed in by_seed.values() for place in seed)
            start = before if row != self.reference else {}
            found += [self._device(row, place, by_seed, start) for place in places]
        if all(row["seeds"] <= 1 for row in found):
            found = [{key: row[key] for key in row if key not in ("low", "high")} for row in found]
        return ranked(found, self.results.split)

    def _measured(self, row: Key) -> dict[int, dict[Place, Row]]:
        """Return what a row's last stage gave, by seed, then by device and split."""
        return {seed: _last(folder) for seed, folder in self._folders(row).items()}

    def _folders(self, row: Key) -> dict[int, Path]:
        """Return the folders of a row's finished runs, by seed."""
        finished = self.results.outcomes.get(row, {})
        own = [cell for cell in self.comparison.cells if cell.row == row and cell.seed in finished]
        return {cell.seed: self.comparison.folder_of(cell) for cell in own}

    def _device(self, row: Key, place: Place, own: BySeed, before: BySeed) -> Row:
        device, split = place
        rows = [measured[place] for measured in own.values() if place in measured]
        pairs = [(own[s].get(place, {}), before.get(s, {}).get(place, {})) for s in own]
        known = [(a["metric"], b["metric"]) for a, b in pairs if _is_known(a) and _is_known(b)]
        gains = [self.sign * (after - start) for after, start in known]
        metrics = [row["metric"] for row in rows if _is_known(row)]
        losses = [row["loss"] for row in rows if row["loss"] is not None]
        return {
            "device": device,
            "model": self.name(row),
            "method": self.results.titles[row[0]],
            "part": row[1] or WHOLE,
            "split": split,
            "examples": self.examples.get(device),
            "seeds": len(metrics),
            "metric": _mean(metrics),
            "loss": _mean(losses),
            "reason": next((row["reason"] for row in rows if not _is_known(row)), None),
            "gain": _mean(gains),
            "low": min(gains, default=None),
            "high": max(gains, default=None),
        }


def compared_in(comparison: Comparison) -> Compared:
    """Return what the finished runs of a comparison say."""
    return Compared(comparison, collect(comparison, comparison.failed()), _examples(comparison))


def _examples(comparison: Comparison) -> dict[DeviceId, int]:
    """Return how many training examples devices have, all that any finished cell has measured."""
    found: dict[DeviceId, int] = {}
    for cell in comparison.cells:
        if RunFolder(comparison.folder_of(cell)).is_finished:
            table = read_table(comparison.folder_of(cell) / "devices.parquet")
            rows = table.select(["device", "split", "examples"]).to_pylist()
            found |= {row["device"]: row["examples"] for row in rows if row["split"] == "train"}
    return found


def _last(folder: Path) -> dict[Place, Row]:
    """Return what the model of a cell's last stage of training does, by device and split."""
    columns = ["stage", "device", "split", "metric", "loss", "reason"]
    rows = read_table(folder / "devices.parquet").select(columns).to_pylist()
    stages = [stage for stage in Stage if stage != Stage.SERVED and any(r["stage"] == stage for r in rows)]
    return {(row["device"], row["split"]): row for row in rows if row["stage"] == stages[-1]}


def _is_known(row: Mapping[str, Any]) -> bool:
    return row.get("metric") is not None


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
