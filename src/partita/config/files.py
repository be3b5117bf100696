"""The files that a config names: where they are found, and the digests by which a run knows their content.

A file is looked for beside the config, then in the folder $PARTITA_DATA; one that the command line names is
looked for in the current folder first (`config.overrides`). A file that a run has recorded is looked for by
its name alone too, so that a run can be moved; its digests say whether it is the same file.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from partita.config.loading import TASKS
from partita.config.overrides import KEYS, OF_MODEL, PATH, PRETRAINED, START, TABLE, TOKENIZER
from partita.config.schema import Config
from partita.data.digests import describe_file, describe_files, describe_table, is_there, places_of
from partita.errors import ConfigError, near_file, shortened
from partita.models.hub import FOLDER, files_of, find_model


def named_files(config: Config, folder: Path) -> dict[str, tuple[str, list[Path]]]:
    """Return the names of the files that a config names, by key, and the paths where each may be."""
    options = config.task.options if config.task.kind in TASKS else {}
    if options.get("data") == "":
        raise ConfigError("`task.data` must name a table, got ''.")
    given = {f"task.{name}": value for name, value in options.items()} | {START: config.model.start}
    if given.get(TOKENIZER) == OF_MODEL:
        del given[TOKENIZER]
    if config.model.name == PRETRAINED:
        given[PATH] = config.model.options.get("path")
    names = {key: given.get(key) for key in KEYS}
    return {
        key: (name, _places(key, name, folder, is_recorded=key in config.made_with))
        for key, name in names.items()
        if isinstance(name, str) and name
    }


def _places(key: str, name: str, folder: Path, *, is_recorded: bool) -> list[Path]:
    """Return the paths where a file may be; pretrained weights are also looked for in their own folder."""
    places = places_of(name, folder, is_recorded=is_recorded)
    models = os.environ.get(FOLDER)
    names = dict.fromkeys([name, Path(name).name] if is_recorded else [name])
    return [*places, *(Path(models) / each for each in names)] if key in (PATH, START) and models else places


def find_files(config: Config, folder: Path) -> dict[str, Path]:
    """Return the files that a config names, by key.

    Args:
        config: the config.
        folder: the folder of the config.

    Raises:
        ConfigError: one is not found.
    """
    found: dict[str, Path] = {}
    for key, (name, places) in named_files(config, folder).items():
        existing = [place for place in places if is_there(place)]
        if not existing and key == PATH:
            existing = [find_model(name, str(config.model.options.get("file", "")))]
        if not existing:
            raise ConfigError(_not_found(key, name, places, is_recorded=key in config.made_with))
        recorded = config.made_with.get(key) if len(existing) > 1 else None
        same = (place for place in existing if recorded == _describe(config, key, place))
        found[key] = next(same, existing[0]) if recorded else existing[0]
    return found


def _not_found(key: str, name: str, places: Sequence[Path], *, is_recorded: bool) -> str:
    """Return the message about a missing file: where it was looked for, and where else it may be."""
    folders = dict.fromkeys(place.parent.resolve() for place in places)
    looked = f"`{key}` = {shortened(name, 200)} is not in {' or '.join(f'`{folder}`' for folder in folders)}"
    if is_recorded:
        return f"{looked}. If it was moved, say where it is: `{key}=FILE`."
    current = Path(name).parent.resolve()
    if current not in folders:
        looked += f", nor, if the command line names it, in `{current}`"
    hint = "" if os.environ.get("PARTITA_DATA") else " Files are also found in the folder $PARTITA_DATA."
    return f"{looked}.{hint}{near_file(Path(name), folders)}"


def _describe(config: Config, key: str, file: Path) -> str:
    if key == PATH:
        return describe_files(file, files_of(file, config.model.options.get("file", "")))
    return describe_table(file) if key == TABLE else describe_file(file)


def is_local(config: Config, folder: Path, key: str) -> bool:
    """Return whether a file that a config names is here, and not on a hub."""
    return any(map(is_there, named_files(config, folder)[key][1]))


def contents_of(config: Config, folder: Path) -> dict[str, str]:
    """Return a text for each file that a config names, by key, that identifies its content."""
    return {key: _describe(config, key, file) for key, file in find_files(config, folder).items()}


def changed_files(config: Config, folder: Path) -> dict[str, tuple[str, str]]:
    """Return the recorded and the present content of each file that has changed since a recorded run."""
    now = contents_of(config, folder) if config.made_with else {}
    recorded = {key: config.made_with.get(key, text) for key, text in now.items()}
    return {key: (recorded[key], text) for key, text in now.items() if recorded[key] != text}


def check_unchanged(config: Config, folder: Path, study: str) -> None:
    """Raise if a file that a comparison or a search reads has other content than when it started."""
    if changed := changed_files(config, folder):
        file = find_files(config, folder)[next(iter(changed))]
        raise ConfigError(
            f"`{file}` has other content than when the {study} in `{folder}` started: restore the original "
            f"file, or start a new {study}."
        )
