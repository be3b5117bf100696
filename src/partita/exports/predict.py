"""Predicting: the served model of each device, for rows of a table that need no label."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from partita.data.arrow import write_table
from partita.data.cache import mode_of
from partita.data.examples import examples_of, in_order
from partita.data.files import open_files
from partita.data.options import TableOptions
from partita.data.unlabeled import Asked, UnlabeledTable
from partita.data.writing import ProgressFn, check_new, no_progress
from partita.durable import new_file
from partita.errors import ConfigError
from partita.exports.any_task import any_predictor
from partita.exports.subject import ServedRun
from partita.protocol import DeviceId
from partita.tasks.build import one_thread, seeded
from partita.tasks.predictor import Predictor

_BATCH_SIZE = 256
"""The batch size of an evaluation."""
_MODELS = 8
"""Models kept at a time: rows of one device are often in several places of a table."""


@dataclass(frozen=True)
class Predicted:
    """The predictions that were written."""

    devices: Mapping[DeviceId, int]
    """The number of rows of each device."""
    skipped: int
    """The number of bad rows, which have no prediction."""


def predict_table(
    run: ServedRun,
    data: Path,
    out: Path,
    *,
    device: DeviceId | None = None,
    skip_bad: bool = False,
    on_progress: ProgressFn = no_progress,
) -> Predicted:
    """Write the predictions of each device's served model for its rows to a new table, in their order.

    Args:
        run: the run.
        data: a table with the columns that inputs are made of, and the devices.
        out: the table to write.
        device: the only device whose rows are predicted; a table without devices is all this device's.
        skip_bad: leave the prediction of a bad row empty, instead of an error.
        on_progress: called with the number of rows done and of all.

    Raises:
        ConfigError: `out` exists, the table lacks a column, or has rows of devices unknown to the run.
    """
    check_new(out)
    settings = {name: run.task_options.get(name) for name in ("device", "id")}
    table = UnlabeledTable(
        path=data,
        columns=(),
        device_column=settings["device"] or TableOptions.device,
        id_column=settings["id"] or "id",
        device=device,
        skip_bad=skip_bad or bool(run.task_options.get("skip_bad")),
    )
    counts = table.ids()
    _check_known(run, data, counts)
    predictor = _predictor_of(run, next(iter(counts)))
    work = _Work(run, predictor, replace(table, columns=predictor.columns), on_progress, sum(counts.values()))
    kinds = {"device": str, "row": int, "id": str, **predictor.kinds, "reason": str}
    with new_file(out, mode=mode_of(open_files(data).paths)) as scratch:
        write_table(scratch, work.rows(), kinds)
        check_new(out)
    return Predicted(counts, work.skipped)


def _check_known(run: ServedRun, data: Path, counts: Mapping[DeviceId, int]) -> None:
    if not sum(counts.values()):
        of_device = f" of device {next(iter(counts))!r}" if counts else ""
        raise ConfigError(f"`{data}` has no rows{of_device}.")
    known = set(run.devices)
    if unknown := [device for device in counts if device not in known]:
        are = f"{len(unknown)} devices" if len(unknown) > 1 else "a device"
        near = run.models.near(unknown[0])
        raise ConfigError(
            f"`{data}` has rows of {are} that the run does not know, such as {unknown[0]!r}"
            f"{f' (near ids: {near})' if near else ''}: personalize them with `partita onboard "
            f"{run.folder.path} DATA.parquet`, or predict some rows with `--device`."
        )


def _predictor_of(run: ServedRun, device: DeviceId) -> Predictor:
    task = run.models.origin.task
    own = device if device in task.devices else task.devices.ids[0]  # Where it has joined the run later.
    return task.predictor or any_predictor(task, run.subject(own).predictor, own)


class _Work:
    """The predictions for a table, made block by block."""

    def __init__(
        self, run: ServedRun, predictor: Predictor, table: UnlabeledTable, on_progress: ProgressFn, total: int
    ) -> None:
        self.skipped = 0
        self._run = run
        self._predictor = predictor
        self._table = table
        self._on_progress = partial(_progress, on_progress, total)
        self._models: dict[DeviceId | None, nn.Module] = {}

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Yield a row for every row of the table, in order."""
        done = 0
        for block in self._table.blocks():
            self._on_progress(done)
            found = [row for asked in block for row in self._predicted(asked)]
            done += len(found)
            yield from sorted(found, key=lambda row: row["row"])
        self._on_progress(done)

    def _predicted(self, asked: Asked) -> Iterator[Mapping[str, Any]]:
        model, predictor = self._model(asked.device), self._predictor
        examples = examples_of(predictor.examples(asked.rows))
        answers: list[Mapping[str, Any]] = []
        if len(examples):
            with torch.no_grad(), one_thread(), seeded(0):
                for batch, _ in in_order(examples, _BATCH_SIZE):
                    answers += predictor.predict(model, batch)
        reasons = {bad.row: bad.reason for bad in asked.bad}
        self.skipped += len(reasons)
        remaining = iter(answers)
        for row, key in zip(asked.positions, asked.ids, strict=True):
            reason = reasons.get(row)
            yield {
                "device": asked.device,
                "row": row,
                "id": key,
                **(next(remaining) if reason is None else {}),
                "reason": reason,
            }

    def _model(self, device: DeviceId) -> nn.Module:
        """Return the served model of a device; all devices with the global one share it."""
        subject = self._run.subject(device)
        key = None if subject.which == "global" else device
        model = self._models.pop(key, None)
        if model is None:
            model = subject.predictor
        if len(self._models) == _MODELS:
            del self._models[next(iter(self._models))]
        self._models[key] = model
        return model


def _progress(on_progress: ProgressFn, total: int, done: int) -> None:
    on_progress(done, total)
