"""Exporting: the served model of one device or of all, checked and then written."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from partita.config.overrides import PRETRAINED
from partita.data.writing import ProgressFn, check_new, no_progress
from partita.durable import locked, make_private_folder, new_file, sync_folder, write_file
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
_FORMAT = 1
"""The version of that file."""


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
        _write_private(out, content)
    return Exported(out, device, subject.which, str(subject.stage))


def export_all(
    run: ServedRun, out: Path, format: str, on_progress: ProgressFn = no_progress
) -> dict[DeviceId, Exported]:
    """Write the served models of all devices to a new folder, with an index; there is a whole folder or none.

    Raises:
        ConfigError: the folder exists.
        InUse: another process is writing it.
        RunFailed: a model cannot leave in this format.
    """
    suffix = "" if format in FOLDERS else FORMATS[format].suffix
    found: dict[DeviceId, Exported] = {}
    with _new_folder(out) as folder:
        for number, device in enumerate(run.devices):
            on_progress(number, len(run.devices))
            subject = run.subject(device)
            file = folder / f"{key_of(device)}{suffix}"
            if format in FOLDERS:
                make_private_folder(file)
                _write_folder(subject, format, file)
            else:
                _write_private(file, _content(subject, format))
            found[device] = Exported(file, device, subject.which, str(subject.stage))
        on_progress(len(run.devices), len(run.devices))
        entries = {device: own.entry() for device, own in found.items()}
        index = {"format": _FORMAT, "kind": format, "run": dict(run.about), "devices": entries}
        _write_private(folder / INDEX, json.dumps(index, indent=1, ensure_ascii=False).encode())
    return found


def _write_folder(subject: Subject, format: str, folder: Path) -> None:
    _written(subject, format, lambda: FOLDERS[format](subject, folder))


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


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read: it has personal parameters."""
    with new_file(path) as scratch:
        write_file(scratch, content)


@contextlib.contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder beside `out` that gets this name at the end, and is deleted after an error.

    One that a killed process has left is deleted first.
    """
    check_new(out)
    folder = out.with_name(f"{out.name}.partita-export")
    if folder.is_symlink():
        raise ConfigError(f"`{folder}` is in the way, a link: remove it.")
    make_private_folder(folder)
    endings = (*(format.suffix for format in FORMATS.values()), ".tmp", INDEX)
    if foreign := [path for path in folder.iterdir() if not path.name.endswith(endings)]:
        raise ConfigError(f"`{folder}` is in the way, with `{foreign[0].name}` in it: remove it.")
    with locked(folder) as is_ours:
        if not is_ours:
            raise InUse(f"`{out}`")
        for left in folder.iterdir():
            left.unlink()
        try:
            yield folder
            check_new(out)
            folder.rename(out)
            sync_folder(out.parent)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
