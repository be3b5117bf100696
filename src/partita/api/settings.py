"""Settings of comparisons and searches from Python: the values of a config, but for the task."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from partita.config.changes import Values, dotted, with_values
from partita.config.files import find_files
from partita.config.overrides import relative_to
from partita.config.reading import read_values
from partita.config.recording import PYTHON
from partita.errors import ConfigError
from partita.studies.cells import base_of

_ARGUMENTS = {"task.kind": "task", "out": "out", "workers": "workers"}
"""Keys that are no settings, and the arguments that are for them."""


def values_of(settings: Mapping[str, Any], changes: Mapping[str, Any], out: str | Path | None) -> Values:
    """Return the values of a config with these settings by dotted key, for a task from Python.

    Args:
        settings: the user's settings.
        changes: further ones, which come from other arguments; None leaves the setting as it is.
        out: the folder.

    Raises:
        ConfigError: a setting has a key or a value that a config cannot have.
    """
    for key, argument in _ARGUMENTS.items():
        if key in settings:
            raise ConfigError(f"`{key}` is not a setting: use the argument `{argument}`.")
    own = {"name": Path(out).resolve().name if out else PYTHON, **settings, "task.kind": PYTHON}
    own |= {key: value for key, value in changes.items() if value is not None}
    try:
        return tomllib.loads(tomli_w.dumps(with_values({}, {**own, "out": out and str(out)})))
    except TypeError as error:
        raise ConfigError(f"Settings are numbers, strings, booleans, lists and dicts: {error}.") from None


def as_list(argument: str, value: Any) -> list[Any]:
    """Return the items of an argument that takes several.

    Raises:
        ConfigError: it is one item, which is not in a list.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(f"`{argument}` must be a list, such as `[{value!r}]`, got {value!r}.")
    return list(value)


def to_resume(
    out: str | Path | None, *, resume: bool, kind: str, is_kind: Callable[[Path], bool]
) -> Path | None:
    """Return the folder of the study to resume, None if a new one is to begin.

    Args:
        out: the folder of the study; it need not exist.
        resume: whether a study in it is to be resumed.
        kind: the kind of study, in messages.
        is_kind: returns whether a folder holds such a study.

    Raises:
        ConfigError: the folder holds something else.
        FileExistsError: the folder exists, and is not to be resumed.
    """
    if out is None and resume:
        raise ValueError("`resume=True` needs `out`, the folder to resume.")
    if out is None or not Path(out).exists():
        return None
    if not resume:
        raise FileExistsError(f"`{out}` already exists: give another `out`, or `resume=True`.")
    if not is_kind(Path(out)):
        raise ConfigError(f"`{out}` holds no {kind} to resume: give another `out`, or delete the folder.")
    return Path(out)


def check_same(given: Values, folder: Path) -> None:
    """Raise if what is to be resumed in a folder was started with other settings than `workers`.

    Paths of files are from the current folder in `given`, and from its own in what is recorded.
    """
    files = relative_to(folder, find_files(base_of(given), Path()))
    now = dotted(with_values(given, {**files, "out": None, "workers": None}))
    then = dotted(with_values(read_values(folder / "config.toml"), {"made_with": None, "workers": None}))
    for key in {**then, **now}:
        if now.get(key) != then.get(key):
            raise ConfigError(
                f"`{folder}` was started with `{key}` = {then.get(key)!r}, got {now.get(key)!r}: resume it "
                "with the same settings, or start again in another folder."
            )
