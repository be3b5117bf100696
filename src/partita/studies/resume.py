"""Configs of runs and studies to resume: what may change, and whether files still have the same content."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from partita.config.building import build_execution
from partita.config.changes import parse_overrides, value_at
from partita.config.files import changed_files, find_files
from partita.config.loading import TASKS
from partita.config.overrides import KEYS, PATH, PRETRAINED, START, relative_to
from partita.config.reading import changed, config_of, read_config, to_values
from partita.config.recording import is_from_python
from partita.config.schema import Config
from partita.data.digests import is_digest, rows_in
from partita.errors import ConfigError
from partita.runs.checking import refuse
from partita.runs.folder import RunFolder
from partita.runs.tensors import newest_model
from partita.seals import damaged
from partita.studies.folders import check_is_run, check_sealed

RESUMABLE = "task.skip_bad=true"
"""The only task override allowed on resume besides paths of files: it changes no row already read."""


_MACHINE = ("workers", "timeout", "accelerator")
"""Keys that say where the run is carried out, which may be on another machine now."""


_TOLERANCE = ("max_failed", "on_error")
"""Keys that say which failures end the run: it may have to be resumed with others."""


def resumed_config(folder: RunFolder, overrides: Sequence[str]) -> Config:
    """Return the config of the run in a folder, to resume it.

    Only `RESUMABLE`, the section `report`, `workers`, `timeout`, `accelerator`, `max_failed`, `on_error` and
    the paths of files may change, not the content of files.

    Raises:
        ConfigError: there is no run to resume, something else is to change, or a file has other content.
    """
    _check_overrides(overrides)
    _check_is_run(folder)
    config = located_files(read_config(folder.config_file, overrides), folder.path)
    if not config.made_with:
        raise ConfigError(f"`{folder.path}` is not a run's folder: no run has written its `config.toml`.")
    check_sealed(folder.config_file)
    refuse(list(folder.recorded.problems(is_finished=False)), folder.path)
    for key in map(_key, overrides):
        if key in KEYS and key not in config.made_with:
            raise ConfigError(f"The run in `{folder.path}` reads no file `{key}`: leave it out.")
    _check_files(config, folder)
    return config


def _key(override: str) -> str:
    return override.partition("=")[0]


def _check_overrides(overrides: Sequence[str]) -> None:
    allowed = [
        t
        for t in overrides
        if t == RESUMABLE or t.startswith("report.") or _key(t) in (*KEYS, *_MACHINE, *_TOLERANCE)
    ]
    if refused := " ".join(text for text in overrides if text not in allowed):
        raise ConfigError(f"A resumed run takes its config from its folder: leave out `{refused}`.")


def check_paths(overrides: Sequence[str]) -> None:
    """Raise if anything but the paths of files is to change, for a command that only reads a run."""
    if refused := " ".join(text for text in overrides if "=" not in text or _key(text) not in KEYS):
        raise ConfigError(
            f"A run that is read takes its config from its folder: leave out `{refused}`. Only the paths of "
            f"files may change: {', '.join(KEYS)}."
        )


def _check_is_run(folder: RunFolder) -> None:
    check_is_run(folder.path)
    folder.check_config()
    if not folder.exists:
        again = shlex.quote(f"out={folder.path}")
        raise ConfigError(
            f"`{folder.path}` holds no run to resume: it has no `{folder.config_file.name}`. A run that was "
            f"stopped before it wrote that file is started again with `{again}`; one started in "
            "Python is resumed in Python, with `resume=True`."
        )
    if is_from_python(folder.values):
        raise ConfigError(
            f"The run in `{folder.path}` was started in Python: resume it there, with `resume=True`."
        )


def located_files(config: Config, folder: Path) -> Config:
    """Return a run's config with the files that the command line names as paths from the run's folder."""
    keys = KEYS if config.task.kind in TASKS else (START, PATH)
    if config.model.name != PRETRAINED:  # The user's own task and model get their arguments as given.
        keys = tuple(key for key in keys if key != PATH)
    names = {key: value_at(to_values(config), key) for key in keys}
    given = {key: Path(name) for key, name in names.items() if name and Path(name).is_absolute()}
    return changed(config, relative_to(folder, given)) if given else config


def _check_files(config: Config, folder: RunFolder) -> None:
    """Raise if a file that a run reads has other content than when the run started."""
    for key, (was, now) in changed_files(config, folder.path).items():
        file = find_files(config, folder.path)[key].resolve()
        added = rows_in(now) - rows_in(was)
        if not is_digest(was):
            raise ConfigError(
                f"The run in `{folder.path}` was started with an earlier version of Partita, which did not "
                f"record the content of `{file}`: start a new run."
            )
        if added > 0:
            raise ConfigError(
                f"`{file}` has {rows_in(now)} rows, {added} more than when the run started. Restore the "
                "original table to resume, or start a new run from this one's model: "
                f"`{_continuation(config, folder, {key: file})}`."
            )
        if file.parent == folder.path.resolve():
            raise damaged(file, "it has other content than when the run started")
        raise ConfigError(
            f"`{file}` has other content than when the run started: restore the original file, or say where "
            f"it is with `{key}=FILE`."
        )


def _continuation(config: Config, folder: RunFolder, files: Mapping[str, Path]) -> str:
    """Return the command that starts a new run with some files from the model of a run."""
    own, here = relative_to(folder.path, files), relative_to(Path(), files)
    arguments = [f"{key}={here[key]}" for key in files if value_at(folder.values, key) != own[key]]
    if (model := newest_model(folder)) is not None:
        arguments.append(f"{START}={model}")
        arguments += ["model.start_names={}"] if config.model.start_names else []
    return shlex.join(["partita", "run", str(folder.config_file), *arguments])


def resumed_workers(arguments: Sequence[str], kind: str) -> int | None:
    """Return the number of workers that a comparison or a search is resumed with, None for its own.

    Args:
        arguments: what was given besides the folder.
        kind: "comparison" or "search".

    Raises:
        ConfigError: something else was given, or no number of workers.
    """
    if any(_key(argument) != "workers" for argument in arguments):
        raise ConfigError(
            f"A resumed {kind} takes its config from its folder: give no other argument than `workers=N`."
        )
    return build_execution(config_of(parse_overrides(arguments))).workers if arguments else None
