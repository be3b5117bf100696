"""A run as rank 0 describes it to the other ranks, and as they build it from that."""

import os
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from partita.config.building import Built, build
from partita.config.changes import value_at, with_values
from partita.config.files import find_files
from partita.config.overrides import DERIVED, START, TABLE
from partita.config.provenance import CODE, TITLE, find_own_code, made_with
from partita.config.reading import config_of, read_values
from partita.config.schema import Config
from partita.data.digests import describe_table
from partita.device.store import Store
from partita.device.visit import Visitor
from partita.errors import ConfigError
from partita.executors.messages import Message
from partita.executors.serial import SerialExecutor
from partita.params import Params, from_bytes, to_bytes
from partita.runs.fingerprint import fingerprint_of
from partita.studies.local import local_executor
from partita.studies.run import Prepared
from partita.tasks.derived import derived_bytes

_PACKAGES = ("partita", "torch", "numpy")
"""The packages of which all ranks must have the same version."""


def describe_run(run: Prepared) -> tuple[dict[str, Any], dict[str, Params]]:
    """Return the values and tensors from which other ranks build a run."""
    config = config_of(read_values(run.folder.config_file))
    files = find_files(config, run.folder.path)
    given = run.config.task.options.get("data")
    values = {
        "config": run.folder.config_text,
        "folder": str(run.folder.path),
        "derived": dict(run.built.task.derived),
        "table": str(files[TABLE].resolve()) if TABLE in files else "",
        "name": given if TABLE in files else "",
        "made_with": made_with(config, run.folder.path),
        "fingerprint": _fingerprint(run.built, config),
    }
    start: dict[str, Params] = {"start": from_bytes(files[START].read_bytes())} if START in files else {}
    return values, start


def build_visitor(message: Message, store: Store, *, beside: Path, local: int) -> Visitor:
    """Return what visits devices of the run that rank 0 describes, on another rank.

    Args:
        message: the description.
        store: storage of personal parts.
        beside: the folder of the config, or of the run to resume, as this rank's command line names it.
        local: the number of this rank among those of its machine.

    Raises:
        ConfigError: the run cannot be built here, or would not be the same.
    """
    values = message.values
    versions = {name: metadata.version(name) for name in _PACKAGES}
    _check_same({name: values["made_with"][name] for name in _PACKAGES}, versions)
    with tempfile.TemporaryDirectory(prefix="partita-rank-") as scratch:
        config = _config(message, beside, Path(scratch))
        built = build(config, beside)
    _check_same(values["made_with"], made_with(config, beside))
    _check_fingerprint(values["fingerprint"], _fingerprint(built, config))
    return own_visits(built, store, seed=config.seed).make_visitor(worker=local)


def own_visits(built: Built, store: Store, *, seed: int) -> SerialExecutor:
    """Return the executor for the visits of one rank."""
    execution = replace(built.execution, workers=1, timeout=0.0)
    executor = local_executor(
        built.task, built.personalization, built.plan, store, seed=seed, execution=execution
    )
    assert isinstance(executor, SerialExecutor), "One worker is this process."
    return executor


def _fingerprint(built: Built, config: Config) -> dict[str, str]:
    return fingerprint_of(built.task, built.personalization, built.plan, seed=config.seed)


def _config(message: Message, beside: Path, scratch: Path) -> Config:
    """Return the config with the files of this rank: its own table, and what rank 0 has sent."""
    recorded, folder = tomllib.loads(message.values["config"]), Path(message.values["folder"])
    changes: dict[str, Any] = {"report": {}}
    versions = recorded["made_with"]
    if message.values["table"]:
        changes[TABLE] = str(_find_table(message.values, versions[TABLE], _here(recorded, folder), beside))
    if DERIVED in versions:
        changes[DERIVED] = str(scratch / "derived.json")
        Path(changes[DERIVED]).write_bytes(derived_bytes(message.values["derived"]))
    if START in versions:
        changes[START] = str(scratch / "start.safetensors")
        Path(changes[START]).write_bytes(to_bytes(message.tensors["start"]))
    places = [_joined(folder, place) for place in versions.get(CODE, "").split(os.pathsep) if place]
    changes["made_with"] = {CODE: os.pathsep.join(map(str, places))}
    values = with_values(recorded, changes)
    find_own_code(values, beside)
    return config_of(values)


def _here(recorded: Mapping[str, Any], folder: Path) -> Path:
    """Return the recorded table, if this rank's folders are like rank 0's."""
    return _joined(folder, str(value_at(recorded, TABLE)))


def _joined(folder: Path, name: str) -> Path:
    """Return a path from a folder that need not exist here."""
    return Path(os.path.normpath(Path.cwd() / folder / name))


def _find_table(values: Mapping[str, Any], content: str, here: Path, beside: Path) -> Path:
    """Return this rank's copy of the table.

    Raises:
        ConfigError: there is none, or it has other content than rank 0's.
    """
    places = dict.fromkeys([here, *_places(values, beside)])
    found = [place for place in places if place.exists()]
    for place in found:
        if describe_table(place) == content:
            return place
    if found:
        raise ConfigError(
            f"`{found[0]}` has other content than rank 0's `{values['table']}`: {describe_table(found[0])}, "
            f"expected {content}. Copy rank 0's to this machine."
        )
    folders = " or ".join(dict.fromkeys(f"`{place.parent}`" for place in places))
    raise ConfigError(
        f"The table `{Path(values['table']).name}` is not in {folders}: copy it there, or set $PARTITA_DATA "
        "on this machine to its folder."
    )


def _places(values: Mapping[str, Any], beside: Path) -> Iterator[Path]:
    """Yield where a table may be: as the config names it, or by its name alone."""
    data = os.environ.get("PARTITA_DATA")
    for name in (values["name"], Path(values["table"]).name):
        for folder in [beside.absolute(), *([Path(data)] if data else []), Path.cwd()]:
            yield folder / name


def _check_same(theirs: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """Raise if this rank has other versions of packages or of user modules than rank 0."""
    for name, version in theirs.items():
        if name not in ("python", CODE, TITLE) and ours.get(name) != version:
            raise ConfigError(
                f"`{name}` is {ours.get(name)} here and {version} on rank 0: the results would differ. "
                "Install the same on all machines."
            )


def _check_fingerprint(theirs: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """Raise if the run as this rank has built it is not rank 0's."""
    for name, text in theirs.items():
        if ours.get(name) != text:
            raise ConfigError(f"The run is not rank 0's: `{name}` is {ours.get(name)} here, {text} there.")
