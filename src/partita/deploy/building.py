"""The objects of a run on each side: the server builds them without any data, a device with its own alone.

Both sides build them from a config of their own, and compare digests of all that a device computes with: no
code and no settings travel.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from partita.config.building import Built, assemble, check_plan
from partita.config.files import contents_of, find_files
from partita.config.loading import TASKS, own_code
from partita.config.overrides import DERIVED, OF_MODEL, PATH, PRETRAINED, START, TOKENIZER
from partita.config.provenance import CODE, TITLE, find_own_code, made_with
from partita.config.reading import changed, read_config, to_values
from partita.config.schema import Config
from partita.data.devices import Devices
from partita.data.options import TableOptions
from partita.data.placeholder import COLUMNS, LABEL, write_placeholder
from partita.data.writing import ColumnKind, TableWriter, schema_of
from partita.errors import ConfigError
from partita.params import digest_of
from partita.partition import PARTS
from partita.protocol import DeviceId
from partita.runs.fingerprint import text_of
from partita.runs.tensors import tensors_in
from partita.server import registry as servers
from partita.tasks.check import check_task
from partita.tasks.derived import derived_bytes, read_derived

PROTOCOL = 1
"""The version of the messages between server and devices."""
_PLACES = {"data", "derived", "vocabulary", "tokenizer", *(entry.name for entry in fields(TableOptions))}
"""Keys of `[task]` that say where a device's data are and which rows of them are used."""
_WEIGHTS = PATH.removeprefix("model.")
_TOKENIZER = TOKENIZER.removeprefix("task.")
_TABLES = (*COLUMNS, "tabular")
"""The kinds of tasks that read a table, and derive values from it."""
_LOCAL = {"python", "partita", "torch", "numpy", CODE, TITLE}
"""Entries of `made_with` that may differ between machines."""


def for_server(config: Config) -> Config:
    """Return the config that the server runs: it has no data, and names none.

    Raises:
        ConfigError: the run needs the data of all devices in one place.
    """
    _check_derived(config)
    if config.finetune.baseline:
        raise ConfigError(
            "`finetune.baseline` needs a run of its own, which `serve` cannot do: leave it out."
        )
    if config.task.kind not in TASKS:
        return config
    options = {name: value for name, value in config.task.options.items() if name != "data"}
    return replace(config, task=replace(config.task, options=options))


def build_for_server(config: Config, beside: Path, devices: Sequence[DeviceId] = ()) -> Built:
    """Return the objects of a run on the server, for devices whose data are elsewhere.

    Args:
        config: the config, from `for_server`.
        beside: the folder of the config, or of the run.
        devices: the devices of the run; none: only what does not depend on them is checked.
    """
    find_own_code(to_values(config), beside)
    with TemporaryDirectory(prefix="partita-serve-") as folder:
        built = assemble(_with_placeholder(config, beside, Path(folder)), beside)
    if config.task.kind not in TASKS and built.task.derived and not config.task.options.get("derived"):
        raise ConfigError(_NEEDS_DERIVED.format(config.task.kind))
    if not devices:
        return built
    # Nothing on the server reads a device's data.
    built = replace(built, task=built.task.with_devices(Devices(devices, lambda device: {})))
    check_plan(built, seed=config.seed)
    return built


def build_for_device(config: Config, beside: Path, device: DeviceId) -> Built:
    """Return the objects of a run on one device, after trying the task on its data.

    Raises:
        ConfigError: the device has no data, or something cannot be used.
    """
    _check_derived(config)
    find_own_code(to_values(config), beside)
    # An exception is handled here, not by the visit: its text may quote data, and a reply would carry it.
    built = assemble(changed(config, {"on_error": "stop"}), beside)
    if device not in built.task.devices:
        raise ConfigError(f"The data has no device {device!r}: its ids must be those of the certificates.")
    load_one = built.task.devices.__getitem__
    built = replace(built, task=built.task.with_devices(Devices([device], load_one)))
    with own_code("The task"):
        check_task(built.task, built.personalization, seed=config.seed)
    return built


def device_ids(config: Path, overrides: Sequence[str]) -> Sequence[DeviceId]:
    """Return the ids of all devices of a config, for a simulation, which has all data in one place."""
    settings = read_config(config, overrides)
    _check_derived(settings)
    return assemble(settings, config.parent).task.devices.ids


_NEEDS_DERIVED = (
    "The task {!r} derives values, such as a vocabulary or classes, from the data of all devices, which no "
    "machine has: set `task.derived` to the file `derived.json` of a run, or to one that `partita describe "
    "CONFIG.toml --derived FILE` has written."
)


def _check_derived(config: Config) -> None:
    """Raise if a task would derive values from data, which differ on every machine."""
    if _derives(config) and not config.task.options.get("derived"):
        raise ConfigError(_NEEDS_DERIVED.format(config.task.kind))


def _derives(config: Config) -> bool:
    """Return whether a task derives values from a table; language modeling in a model's tokens does not."""
    options = config.task.options
    is_language_model = _is_of_model(config.task.kind, options) and not options.get(LABEL)
    return config.task.kind in _TABLES and not is_language_model


def _is_of_model(kind: str, options: Mapping[str, Any]) -> bool:
    """Return whether a task reads texts in the tokens of its pretrained model."""
    return kind == "text" and options.get(_TOKENIZER) == OF_MODEL


def _without_places(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a task that are the same on all machines."""
    kept = {name: value for name, value in options.items() if name not in _PLACES}
    return {**kept, _TOKENIZER: OF_MODEL} if _is_of_model(kind, options) else kept


def _with_placeholder(config: Config, beside: Path, folder: Path) -> Config:
    """Return a config with a table of noise for a task that reads one: only its model and metrics matter."""
    kind, options = config.task.kind, dict(config.task.options)
    if kind not in _TABLES:
        return config
    derived = find_files(config, beside).get(DERIVED, "")
    path = folder / "placeholder.parquet"
    if kind == "tabular":
        values = read_derived(kind, str(derived)) or {}
        _write_numbers(path, [*values["columns"], str(options.get("label", "label"))])
    else:
        write_placeholder(path, kind, devices=1, size=_pixels(options), words=1)
        options = {name: value for name, value in options.items() if name not in ("image", "audio", "text")}
        options |= {LABEL: LABEL} if options.get(LABEL) else {}
    kept = _without_places(kind, options)
    task = replace(config.task, options={**kept, "data": str(path), "derived": str(derived)})
    return replace(config, task=task, evaluate=replace(config.evaluate, unseen=0.0))


def _pixels(options: Mapping[str, Any]) -> int:
    return max([28, *(options[key] for key in ("size", "crop_from") if isinstance(options.get(key), int))])


def _write_numbers(path: Path, names: Sequence[str]) -> None:
    columns: dict[str, ColumnKind] = dict.fromkeys(names, "number")
    row = {"device": "placeholder", **dict.fromkeys(names, 0.0)}
    with TableWriter(path, schema_of(columns)) as writer:
        writer.add_rows([{**row, "split": split} for split in ("train", "test")])


def computes_with(config: Config, built: Built, beside: Path) -> dict[str, str]:
    """Return digests of all that a device computes with, by name.

    Paths, the number of rounds and devices, and the server's own settings are not in it.
    """
    task, own, plan = built.task, built.personalization, built.plan
    options = _without_places(config.task.kind, config.task.options)
    start = find_files(_without_table(config), beside).get(START)
    code = {name: text for name, text in made_with(_of_devices(config), beside).items() if name not in _LOCAL}
    parts = {
        part: {name: list(shape) for name, shape in own.partition.shapes(part).items()} for part in PARTS
    }
    return {
        "protocol": str(PROTOCOL),
        "seed": _digest(config.seed),
        "task": _digest([config.task.kind, options, list(task.metrics)]),
        "derived": hashlib.sha256(derived_bytes(task.derived)).hexdigest(),
        "model": _digest(_model_values(config, beside)),
        "start": _digest([digest_of(tensors_in(start)), config.model.start_names]) if start else "",
        "partition": _digest([to_values(config)["partition"], parts]),
        "pretrain": _digest(text_of(plan.pretrain and plan.pretrain.method)),
        "personalize": _digest(text_of(plan.personalize and plan.personalize.method)),
        "finetune": _digest(text_of(plan.finetune)),
        "precision": built.execution.precision,
        "code": _digest(code),
    }


def _without_table(config: Config) -> Config:
    """Return a config that names no files but those of its model."""
    return replace(config, task=replace(config.task, options={}))


def _model_values(config: Config, beside: Path) -> dict[str, Any]:
    """Return the settings of a model, with the content of pretrained weights in place of their path."""
    values = {"name": config.model.name, **config.model.options}
    if config.model.name == PRETRAINED:
        plain = _without_table(replace(config, model=replace(config.model, start="")))
        values[_WEIGHTS] = contents_of(plain, beside)[PATH]
    return values


def _of_devices(config: Config) -> Config:
    """Return a config without the code that only the server runs: its optimizers, and watchers."""
    default = servers.DEFAULT
    return replace(
        config,
        pretrain=replace(config.pretrain, server_optimizer=default),
        personalize=replace(config.personalize, server_optimizer=default),
        report=replace(config.report, watchers=[]),
    )


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Return the names of what the two sides compute with and that differs."""
    return sorted(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
