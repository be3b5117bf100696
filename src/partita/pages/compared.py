"""What a comparison says of every device and round, put side by side: means over seeds and their range."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from partita.comparison.grid import START
from partita.comparison.results import Results, collect
from partita.comparison.results import Row as Key
from partita.comparison.running import Comparison
from partita.comparison.statistics import mean_of
from partita.data.arrow import read_table
from partita.finished import is_finished
from partita.pages.facts import Row, ranked, training_of
from partita.protocol import DeviceId, Stage

Place = tuple[DeviceId, str]
"""A device and a split."""
BySeed = Mapping[int, Mapping[Place, float]]
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
    def drawn(self) -> list[Key]:
        """The rows that have a change to draw."""
        return [row for row in self.results.outcomes if row[0] != self.results.reference]

    @property
    def methods(self) -> list[str]:
        """What methods are called, in the order of their colours, what others begin from last."""
        rows = [*self.drawn, *self.results.outcomes]
        return list(dict.fromkeys(self.results.titles[row[0]] for row in rows))

    def name(self, row: Key) -> str:
        """Return what a row is called."""
        title = self.results.titles[row[0]]
        return f"{title} ({row[1]})" if row[1] else title

    def mean(self, row: Key) -> float:
        """Return the mean of a row over devices and seeds, after its last stage."""
        return statistics.fmean(mean_of(outcome.last) for outcome in self.results.outcomes[row].values())

    def points(self) -> list[Row]:
        """Return a row a model that devices keep something for: how much, and its change."""
        reference = (self.results.reference, "")
        if reference not in self.results.outcomes:
            return []
        start = self.mean(reference)
        points = [
            {
                "model": self.name(row),
                "method": self.results.titles[row[0]],
                "part": row[1] or WHOLE,
                "kept": max(outcome.kept for outcome in self.results.outcomes[row].values()),
                "gain": self.sign * (self.mean(row) - start),
            }
            for row in self.drawn
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
        reference = (self.results.reference, "")
        before = self._measured(reference)
        found: list[Row] = []
        for row in sorted(self.results.outcomes, key=lambda row: row != reference):
            by_seed = self._measured(row)
            places = dict.fromkeys(place for seed in by_seed.values() for place in seed)
            start = before if row != reference else {}
            found += [self._device(row, place, by_seed, start) for place in places]
        return ranked(found, self.results.split)

    def _measured(self, row: Key) -> dict[int, dict[Place, float]]:
        """Return the metrics of a row's last stage, by seed, then by device and split."""
        return {seed: _last(folder) for seed, folder in self._folders(row).items()}

    def _folders(self, row: Key) -> dict[int, Path]:
        """Return the folders of a row's finished runs, by seed."""
        finished = self.results.outcomes.get(row, {})
        own = [cell for cell in self.comparison.cells if cell.row == row and cell.seed in finished]
        return {cell.seed: self.comparison.folder_of(cell) for cell in own}

    def _device(self, row: Key, place: Place, own: BySeed, before: BySeed) -> Row:
        device, split = place
        values = [seed[place] for seed in own.values() if place in seed]
        pairs = [
            (own[s][place], before[s][place]) for s in own if place in own[s] and place in before.get(s, {})
        ]
        gains = [self.sign * (after - start) for after, start in pairs]
        return {
            "device": device,
            "model": self.name(row),
            "method": self.results.titles[row[0]],
            "part": row[1] or WHOLE,
            "split": split,
            "examples": self.examples.get(device),
            "seeds": len(values),
            "metric": statistics.fmean(values),
            "gain": statistics.fmean(gains) if gains else None,
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
        if is_finished(comparison.folder_of(cell)):
            table = read_table(comparison.folder_of(cell) / "devices.parquet")
            rows = table.select(["device", "split", "examples"]).to_pylist()
            found |= {row["device"]: row["examples"] for row in rows if row["split"] == "train"}
    return found


def _last(folder: Path) -> dict[Place, float]:
    """Return what the model of a cell's last stage of training does, by device and split."""
    rows = read_table(folder / "devices.parquet").select(["stage", "device", "split", "metric"]).to_pylist()
    stages = [stage for stage in Stage if stage != Stage.SERVED and any(r["stage"] == stage for r in rows)]
    own = [row for row in rows if row["stage"] == stages[-1] and row["metric"] is not None]
    return {(row["device"], row["split"]): row["metric"] for row in own}
