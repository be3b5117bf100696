"""Events for TensorBoard, as `rounds.jsonl` has them; no other module knows TensorBoard."""

import json
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from partita.errors import needed
from partita.training.evaluation import DeviceRow as Row
from partita.training.evaluation import weighted_mean

FOLDER = "tensorboard"
"""Where the events are in a run's folder."""
_VERSION = "brain.Event:2"
"""What the first record of a file of events says."""
_MEASURED = ("loss", "metric")


def check_tensorboard() -> None:
    """Raise where TensorBoard is not installed."""
    needed("tensorboard", by="`report.tensorboard`", extra="tensorboard")


class TensorBoard:
    """A watcher that writes what `rounds.jsonl` says as TensorBoard's events, every round once.

    It reads the file itself, from its beginning: the events that a run has written before it was ended are
    counted, and those that follow are written. An evaluation of many devices is one event, their mean.

    Args:
        folder: the run's folder.
    """

    def __init__(self, folder: str | Path) -> None:
        check_tensorboard()
        self._journal = Path(folder) / "rounds.jsonl"
        self._folder = Path(folder) / FOLDER
        self._there = sum(map(_count_events, self._folder.glob("*tfevents*")))
        self._file = self._folder / f"events.out.tfevents.{self._there:010}.partita"
        self._position = 0
        self._events = 0
        self._evaluation: list[Row] = []

    def __enter__(self) -> Self:
        return self

    def __call__(self, line: Row, done: int, total: int) -> None:
        """Write all rounds that have ended."""
        self._follow()
        if done == total:
            self._end_evaluation()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._journal.exists():
            self._follow()
            self._end_evaluation()

    def _follow(self) -> None:
        """Take the lines that were added to the file."""
        with self._journal.open("rb") as lines:
            lines.seek(self._position)
            for line in lines:
                self._take(json.loads(line))
            self._position = lines.tell()

    def _take(self, line: Row) -> None:
        if self._evaluation and _which(self._evaluation[-1]) != _which(line):
            self._end_evaluation()
        if line["work"] == "evaluate":
            self._evaluation.append(
                {key: line.get(key) for key in ("stage", "work", "round", "weight", *_MEASURED)}
            )
        else:
            self._write(line, dict(_numbers(line)))

    def _end_evaluation(self) -> None:
        """Write the means of an evaluation, all of whose devices have been asked."""
        if not self._evaluation:
            return
        means: dict[str, float] = {}
        for name in _MEASURED:
            known = [line for line in self._evaluation if line[name] is not None]
            if known:
                mean = weighted_mean((line[name] for line in known), (line["weight"] for line in known))
                means[f"evaluation/{name}"] = mean
        self._write(self._evaluation[0], means)
        self._evaluation.clear()

    def _write(self, line: Row, numbers: Mapping[str, float]) -> None:
        """Write one event, unless it is there."""
        self._events += 1
        if self._events <= self._there:
            return
        is_first = self._events == self._there + 1
        scalars = [{"tag": f"{line['stage']}/{name}", "simple_value": n} for name, n in numbers.items()]
        self._folder.mkdir(exist_ok=True)
        with self._file.open("wb" if is_first else "ab") as file:
            if is_first:
                _write_event(file, file_version=_VERSION)
            _write_event(file, step=line["round"], summary={"value": scalars})


def _write_event(file: BinaryIO, **fields: Any) -> None:
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter

    events: Any = event_pb2
    RecordWriter(file).write(events.Event(wall_time=time.time(), **fields).SerializeToString())


def _which(line: Row) -> tuple[str, str, int]:
    return line["stage"], line["work"], line["round"]


def _numbers(line: Row) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a training round that are known."""
    for name in ("loss", "personal_lr", "shared_lr", "seconds"):
        if line[name] is not None:
            yield name, line[name]
    yield "heard", len(line["heard"])
    yield "bytes_down", line["bytes"]["down"]
    yield "bytes_up", line["bytes"]["up"]


def _count_events(path: Path) -> int:
    """Return how many events a file holds in full, its first record not counted.

    A record is its length in 8 bytes, a checksum in 4, the event, and another checksum in 4.
    """
    count, position, size = -1, 0, path.stat().st_size
    with path.open("rb") as file:
        while header := file.read(12):
            position += 16 + struct.unpack("<Q", header[:8])[0] if len(header) == 12 else size + 1
            if position > size:
                break
            file.seek(position)
            count += 1
    return max(count, 0)
