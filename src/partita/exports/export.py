"""Exporting: the served model of one device or of all, checked and then written."""

import contextlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from partita.config.overrides import PRETRAINED
from partita.data.cache import ExampleCache
from partita.data.writing import ProgressFn, check_new, no_progress
from partita.durable import (
    locked,
    make_private_folder,
    make_private_tree,
    new_file,
    sync_file,
    sync_folder,
    write_private,
)
from partita.errors import CannotDo, ConfigError, InUse, RunFailed
from partita.exports.adapters import write_adapter, write_merged
from partita.exports.files import model_bytes, model_from
from partita.exports.opening import finished_run, open_models
from partita.exports.programs import onnx_bytes, program_bytes
from partita.exports.recipes import NotNamed, recipe_of
from partita.exports.samples import all_inputs, largest_difference, output_of
from partita.exports.subject import ServedRun, Subject
from partita.models.pretrained import Pretrained
from partita.protocol import DeviceId, key_of

Written = TypeVar("Written")
INDEX = "index.json"
"""The file beside exported models that has the file, or the folder, of each device."""
_MARKER = "export.partita"
"""The file that marks the folder in which models are written until all are whole."""
_FORMAT = 1
"""The version of that file."""
_CACHED = 16_000_000
"""Bytes of decoded examples that stay in memory while all devices are exported: each is visited once."""


@dataclass(frozen=True)
class Format:
    """A format in which a model leaves a run, as one file."""

    suffix: str
    content: Callable[[Subject], bytes]
    """Returns the content of a file, checked to predict as the model does."""


FOLDERS: Mapping[str, Callable[[Subject, Path], None]] = {"adapter": write_adapter, "merged": write_merged}
"""The formats of pretrained models, each a folder, by name: functions that write it, checked as above."""


@dataclass(frozen=True)
class Exported:
    """A model that was written."""

    file: Path
    device: DeviceId
    model: str
    """Whether it is the device's own model, `personal`, or the `global` one."""
    stage: str

    def entry(self) -> dict[str, str]:
        """Return the model's entry in the index of a folder."""
        return {"file": self.file.name, "model": self.model, "stage": self.stage}


def open_run(path: Path, overrides: Sequence[str] = ()) -> ServedRun:
    """Return the finished run in a folder, to take models from it."""
    return ServedRun(finished_run(path), open_models(path, overrides))


def default_format(run: ServedRun) -> str:
    """Return the format of a run's models where none is asked for: pretrained ones leave as adapters."""
    own = run.folder.values.get("model", {}).get("name") == PRETRAINED
    return "adapter" if own else "safetensors"


def export_device(run: ServedRun, device: DeviceId, out: Path, format: str) -> Exported:
    """Write the served model of a device to a new file, or to a new folder.

    Raises:
        ConfigError: the file exists, or the run has no such device.
        RunFailed: the model cannot leave in this format.
    """
    check_new(out)
    subject = run.subject(device)
    if format in FOLDERS:
        with _new_folder(out) as folder:
            _write_folder(subject, format, folder)
    else:
        content = _content(subject, format)
        check_new(out)
        with new_file(out) as scratch:
            _write_private(scratch, content)
    return Exported(out, device, subject.which, str(subject.stage))


def export_all(run: ServedRun, out: Path, format: str, on_progress: ProgressFn = no_progress) -> Counter[str]:
    """Write the served models of all devices to a new folder, with an index; there is a whole folder or none.

    Returns:
        The number of personal and of global models.

    Raises:
        ConfigError: the folder exists.
        InUse: another process is writing it.
        RunFailed: a model cannot leave in this format.
    """
    suffix, count = "" if format in FOLDERS else FORMATS[format].suffix, len(run.devices)
    found: list[tuple[str, str]] = []
    with _new_folder(out) as folder, ExampleCache.limited(_CACHED):
        for number, device in enumerate(run.devices):
            on_progress(number, count)
            subject = run.subject(device)
            file = folder / f"{key_of(device)}{suffix}"
            if format in FOLDERS:
                make_private_folder(file)
                _write_folder(subject, format, file)
            else:
                _write_private(file, _content(subject, format))
            found.append((subject.which, str(subject.stage)))
        on_progress(count, count)
        about = {"format": _FORMAT, "kind": format, "run": dict(run.about)}
        exported = (
            Exported(folder / f"{key_of(device)}{suffix}", device, *own)
            for device, own in zip(run.devices, found, strict=True)
        )
        _write_private(folder / INDEX, *_index_of(about, exported))
    return Counter(model for model, _ in found)


def _index_of(about: Mapping[str, Any], exported: Iterable[Exported]) -> Iterator[bytes]:
    """Yield the JSON of an index, a line for each device: one object would take far more memory."""
    yield f'{json.dumps(about, ensure_ascii=False)[:-1]}, "devices": {{'.encode()
    for number, each in enumerate(exported):
        entry = f"{json.dumps(each.device, ensure_ascii=False)}: {json.dumps(each.entry())}"
        yield f"{',' if number else ''}\n{entry}".encode()
    yield b"\n}}\n"


def _write_folder(subject: Subject, format: str, folder: Path) -> None:
    """Write a folder of files that only their owner may read, and wait for the disk."""
    _written(subject, format, lambda: FOLDERS[format](subject, folder))
    make_private_tree(folder)


def _content(subject: Subject, format: str) -> bytes:
    return _written(subject, format, lambda: FORMATS[format].content(subject))


def _written(subject: Subject, format: str, write: Callable[[], Written]) -> Written:
    """Return what `write` returns."""
    try:
        if subject.needs_examples:
            raise CannotDo(
                "Its method predicts with the device's training examples, which are not part of a model. "
                "`partita predict` predicts rows with it."
            )
        return write()
    except CannotDo as error:
        raise RunFailed(
            f"The model of device {subject.device!r} cannot be exported as {format}: {error}"
        ) from error


def _safetensors(subject: Subject) -> bytes:
    """Return the content of a safetensors file, which gives the same bits when it is loaded."""
    if isinstance(subject.model, Pretrained):
        raise ConfigError("A pretrained Hugging Face model is exported as an adapter, or with `--merged`.")
    try:
        recipe = recipe_of(subject.run.models.origin.task.model, subject.personalization)
    except NotNamed as error:
        raise ConfigError(
            f"{error} Give `model.name` an import path, or export a program with `--format torch-export`."
        ) from None
    content = model_bytes(subject.model, recipe, subject.metadata)
    loaded = model_from(content, "the file", user_code=True)
    for inputs in all_inputs(subject.task, subject.model, subject.examples):
        if largest_difference(output_of(subject.model, inputs), output_of(loaded, inputs)) > 0:
            raise CannotDo(
                f"Built again by `{recipe.call.path}`, it predicts otherwise: the function must build the "
                "same model every time. `--format torch-export` needs no function."
            )
    return content


FORMATS: Mapping[str, Format] = {
    "safetensors": Format(".safetensors", _safetensors),
    "torch-export": Format(".pt2", program_bytes),
    "onnx": Format(".onnx", onnx_bytes),
}
"""The formats by name."""


def _write_private(path: Path, *pieces: bytes) -> None:
    """Write a file that its owner alone may read, as it has personal parameters, and wait for the disk."""
    write_private(path, *pieces)
    sync_file(path)


@contextlib.contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield a new folder that gets the name `out` at the end, and is deleted after an error.

    Until then it is inside a folder beside `out` that has a marker: one that a killed process has left is
    deleted first, whatever it has in it.
    """
    check_new(out)
    scratch = out.with_name(f"{out.name}.partita-export")
    if scratch.is_symlink():
        raise ConfigError(f"`{scratch}` is in the way, a link: remove it.")
    make_private_folder(scratch)
    with locked(scratch) as is_ours:
        if not is_ours:
            raise InUse(f"`{out}`")
        left = [path.name for path in scratch.iterdir()]
        if left and _MARKER not in left:
            raise ConfigError(f"`{scratch}` is in the way, with `{left[0]}` in it: remove it.")
        _write_private(scratch / _MARKER, f"Files of `partita export` for `{out.name}`.\n".encode())
        sync_folder(scratch)
        folder = scratch / "whole"
        try:
            if folder.exists():
                shutil.rmtree(folder)
            make_private_folder(folder)
            yield folder
            sync_folder(folder)
            check_new(out)
            folder.rename(out)
            sync_folder(out.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # The marker goes last.
            shutil.rmtree(scratch, ignore_errors=True)
