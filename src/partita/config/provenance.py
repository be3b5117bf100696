"""The code behind a run: folders of user modules, versions and hashes."""

import hashlib
import importlib
import inspect
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from partita.config.schema import Config
from partita.methods import registry

COMMAND = "command"
"""The key of the command that started a recorded run."""
TITLE = "title"
"""The key of the title of a recorded run's method, if it is the user's."""
CODE = "code"
"""The key of the folders of a recorded run's user code."""
_IMPORT_PATH = re.compile(r"(?P<package>[^\W\d]\w*)(\.\w+)*:[^\W\d]")
"""The beginning of an import path, `package.module:function`."""


def made_with(config: Config, folder: Path, *others: Config) -> dict[str, str]:
    """Return the versions of Python and packages, and version, file hash and folder of user modules."""
    versions = {"python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in ("partita", "torch", "numpy")}
    places: set[str] = set()
    paths = [path for each in (config, *others) for path in _paths(each)]
    for module in sorted({path.partition(":")[0] for path in paths if ":" in path}):
        imported = importlib.import_module(module)
        # The `__main__` of a notebook has no file.
        if not hasattr(imported, "__file__") or (source := inspect.getsourcefile(imported)) is None:
            continue
        file = Path(source).resolve()
        versions[module] = f"{_version(module)}sha256 {hashlib.sha256(file.read_bytes()).hexdigest()}"
        root = file.parents[module.count(".") + (file.name == "__init__.py")]
        if not any(root.is_relative_to(prefix) for prefix in (sys.prefix, sys.base_prefix)):
            places.add(os.path.relpath(root, folder.resolve()))
    if ":" in registry.path_of(config.personalize.method):
        versions[TITLE] = registry.find(config.personalize.method).title
    return versions | ({CODE: os.pathsep.join(sorted(places))} if places else {})


def still_made_with(config: Config, folder: Path) -> dict[str, str]:
    """Return the versions of a recorded run, plus those of modules that it did not use before."""
    now = made_with(config, folder)
    return {**now, **config.made_with, **({CODE: now[CODE]} if CODE in now else {})}


def _paths(config: Config) -> list[str]:
    """Return the values of a config that may be import paths."""
    paths = [config.task.kind, config.model.name, config.pretrain.optimizer]
    paths += [registry.path_of(config.personalize.method), config.personalize.optimizer]
    paths += [config.finetune.optimizer]
    paths += [config.pretrain.server_optimizer, config.personalize.server_optimizer]
    return [*paths, str(config.partition.adapter_width), *config.report.watchers]


def _version(module: str) -> str:
    """Return the name and version of the installed package that a module belongs to, if one does."""
    owners = _owners().get(module.partition(".")[0], [])
    return f"{owners[0]} {metadata.version(owners[0])}, " if owners else ""


@cache
def _owners() -> Mapping[str, list[str]]:
    """Return the packages of each module; cached, since it reads the metadata of all packages."""
    return metadata.packages_distributions()


def find_own_code(values: Mapping[str, Any], beside: Path) -> None:
    """Append to `sys.path` the folders of the modules that a config names by import path.

    A module that can be imported already is left alone: no file of the user's hides an installed package.
    Others are looked for in the folders of a recorded run, the current one and the config's.

    Args:
        values: the config's values.
        beside: the folder of the config.
    """
    versions = values.get("made_with")
    recorded = versions.get(CODE, "") if isinstance(versions, Mapping) else ""
    folders = [beside.resolve() / place for place in str(recorded).split(os.pathsep) if place]
    folders += [Path.cwd(), beside.resolve()]
    for package in dict.fromkeys(packages_in(values)):
        if package in sys.modules or _is_code(find_spec(package)):
            continue
        found = {str(folder): PathFinder.find_spec(package, [str(folder)]) for folder in folders}
        best = [folder for folder, spec in found.items() if _is_code(spec)]
        namespaces = [folder for folder, spec in found.items() if spec]
        sys.path += [folder for folder in (best or namespaces)[:1] if folder not in sys.path]


def _is_code(found: ModuleSpec | None) -> bool:
    """Return whether a module was found, and not only a folder of its name without an `__init__.py`."""
    return found is not None and found.origin is not None


def packages_in(values: Any) -> Iterator[str]:
    """Yield the top-level package of every import path in a config, wherever it is."""
    if isinstance(values, str) and (path := _IMPORT_PATH.match(values)):
        yield path["package"]
    elif isinstance(values, Mapping):
        for key, value in values.items():
            yield from packages_in(key)
            yield from packages_in(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from packages_in(value)


def changed_code(config: Config, folder: Path) -> list[str]:
    """Return a sentence for each version or hash that has changed since a recorded run."""
    now = made_with(config, folder)
    return [
        f"The run was made with {name} {was}; now it is {now[name]}."
        for name, was in config.made_with.items()
        if name != CODE and now.get(name, was) != was
    ]
