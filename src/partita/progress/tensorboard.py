"""Event files for TensorBoard, written from `rounds.jsonl`; the only module that imports TensorBoard."""

import json
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from partita.errors import needed
from partita.runs.curves import mean_in
from partita.runs.folder import RunFolder
from partita.shown import shown
from partita.training.evaluation import combined_mean

_VERSION = "brain.Event:2"
"""The content of the first record of an event file."""
_MEASURED = ("loss", "metric")
_KEPT = ("stage", "work", "round", "final", "weight", *_MEASURED)
"""Of the line of an evaluation, what its event needs besides further metrics."""


def check_tensorboard() -> None:
    """Raise an error if TensorBoard is not installed."""
    needed("tensorboard", by="`report.tensorboard`", extra="tensorboard")


class TensorBoard:
    """A watcher that writes every line of `rounds.jsonl` as an event for TensorBoard, each exactly once.

    It reads `rounds.jsonl` from the beginning and skips as many events as the run has written before it was
    interrupted. An evaluation in several blocks of devices is one event with the mean over all devices.

    Args:
        folder: the run's folder.
    """

    def __init__(self, folder: str | Path) -> None:
        check_tensorboard()
        self._rounds = RunFolder(folder).rounds_file
        self._folder = RunFolder(folder).tensorboard_folder
        self._written = sum(map(_count_events, self._folder.glob("*tfevents*")))
        self._file = self._folder / f"events.out.tfevents.{self._written:010}.partita"
        self._position = 0
        self._events = 0
        self._evaluation: list[Mapping[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __call__(self, line: Mapping[str, Any], done: int, total: int) -> None:
        """Write an event for every round that has ended."""
        self._write_new()
        if done == total:
            self._end_evaluation()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._rounds.exists():
            self._write_new()
            self._end_evaluation()

    def _write_new(self) -> None:
        """Write the events of the lines that were added to the file."""
        with self._rounds.open("rb") as lines:
            lines.seek(self._position)
            for line in lines:
                self._write_line(json.loads(line))
            self._position = lines.tell()

    def _write_line(self, line: Mapping[str, Any]) -> None:
        if not line.get("seen", True):  # The report has the unseen devices.
            return
        if self._evaluation and _key(self._evaluation[-1]) != _key(line):
            self._end_evaluation()
        if line["work"] == "evaluate":
            self._evaluation.append(
                {key: line.get(key) for key in _KEPT} | {"metrics": line.get("metrics", {})}
            )
        else:
            self._write(line, dict(_scalars(line)))

    def _end_evaluation(self) -> None:
        """Write the means of an evaluation once all of its blocks are there."""
        if not self._evaluation:
            return
        first = self._evaluation[0]
        # The final model is measured on all devices, and after early stopping it is one of an earlier round.
        tag = "final" if first["final"] else "evaluation"
        self._write(first, {f"{tag}/{name}": mean for name, mean in _means(self._evaluation)})
        self._evaluation.clear()

    def _write(self, line: Mapping[str, Any], scalars: Mapping[str, float]) -> None:
        """Write one event, unless an earlier process has written it."""
        self._events += 1
        if self._events <= self._written:
            return
        is_first = self._events == self._written + 1
        values = [{"tag": shown(f"{line['stage']}/{name}"), "simple_value": n} for name, n in scalars.items()]
        self._folder.mkdir(exist_ok=True)
        with self._file.open("wb" if is_first else "ab") as file:
            if is_first:
                _write_event(file, file_version=_VERSION)
            _write_event(file, step=line["round"], summary={"value": values})


def _write_event(file: BinaryIO, **fields: Any) -> None:
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter

    events: Any = event_pb2
    RecordWriter(file).write(events.Event(wall_time=time.time(), **fields).SerializeToString())


def _means(blocks: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield the means over the blocks of an evaluation: of the loss and of all metrics."""
    for name in _MEASURED:
        known = [(line[name], line["weight"]) for line in blocks if line[name] is not None]
        if mean := combined_mean(known):
            yield name, mean[0]
    for name in dict.fromkeys(name for line in blocks for name in line["metrics"]):
        if mean := combined_mean(filter(None, (mean_in(line, name) for line in blocks))):
            yield name, mean[0]


def _key(line: Mapping[str, Any]) -> tuple[str, str, int, bool]:
    return line["stage"], line["work"], line["round"], line["final"]


def _scalars(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the scalars of a training round, by name."""
    for name in ("loss", "personal_lr", "shared_lr", "seconds"):
        if line[name] is not None:
            yield name, line[name]
    yield "heard", len(line["heard"])
    yield "bytes_down", line["bytes"]["down"]
    yield "bytes_up", line["bytes"]["up"]


def _count_events(path: Path) -> int:
    """Return the number of complete events in a file, without its first record.

    A record is the event's length in 8 bytes, a checksum in 4, the event, and another checksum in 4.
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
