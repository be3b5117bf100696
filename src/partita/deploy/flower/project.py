"""A new Flower app: the config, the files that it needs, and a module that names Partita's components.

Flower packs an app's Python, TOML and JSON files and sends them to every machine, so the config and its
derived values travel with the app. The data and initial weights do not: they are on the machines.
"""

import logging
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from partita.config.files import find_files, is_local
from partita.config.loading import TASKS
from partita.config.overrides import DERIVED, PATH, START, TEMPLATES
from partita.config.provenance import packages_in
from partita.config.reading import read_config, read_values
from partita.config.schema import Config
from partita.deploy.building import build_for_server, for_server
from partita.durable import make_folder, replace_file
from partita.errors import ConfigError

logger = logging.getLogger(__name__)

PACKAGE = "partita_app"
"""The name of the package in an app."""
_CONFIG, _DERIVED = "config.toml", "derived.json"
_MODULE = f'''"""A Flower app of Partita: both of its components run the config beside this file."""

from pathlib import Path

from partita.deploy.flower.app import client_app, server_app

CONFIG = Path(__file__).with_name("{_CONFIG}")

server = server_app(CONFIG)
client = client_app(CONFIG)
'''


@dataclass(frozen=True)
class Setting:
    """A setting of a Flower run, which `flwr run -c` can change."""

    name: str
    default: Any
    text: str


SETTINGS = (
    Setting(
        "home", "", "the server's folder, on the machine that runs the server; in a simulation, all homes"
    ),
    Setting("data", "", "in a simulation, the table of all devices"),
    Setting("devices", 1, "begin when so many devices have joined"),
    Setting("deadline", 0.0, "seconds after which a device misses its round; 0: it is waited for"),
    Setting("min-devices", 1, "a round with fewer replies at its deadline keeps waiting"),
    Setting("linger", 120.0, "seconds that devices have at the end to learn that the run is over"),
    Setting("resume", False, "resume the run in the home"),
)
"""The settings of a Flower run; the config has all others."""


def write_app(folder: Path, config: Path, overrides: Sequence[str] = (), *, devices: int = 1) -> None:
    """Write a new Flower app that runs a config.

    Args:
        folder: the app's folder, which must not exist.
        config: the file of the config.
        overrides: values that override it, `section.key=value`.
        devices: the number of devices with which a run begins.

    Raises:
        ConfigError: the folder exists, or the config cannot be run on real devices.
    """
    if folder.exists():
        raise ConfigError(f"`{folder}` exists already: give another name, or remove it.")
    if devices < 1:
        raise ConfigError(f"`--devices` must be at least 1, got {devices}.")
    settings = for_server(read_config(config, overrides))
    build_for_server(settings, config.parent)
    values, derived = _app_values(read_values(config, overrides), settings, config.parent)
    package = folder / PACKAGE
    make_folder(package)
    _copy_own_code(values, config.parent, package)
    if derived is not None:
        shutil.copyfile(derived, package / _DERIVED)
    replace_file(package / _CONFIG, tomli_w.dumps(values).encode())
    replace_file(package / "__init__.py", b'"""A Flower app of Partita."""\n')
    replace_file(package / "app.py", _MODULE.encode())
    replace_file(folder / "pyproject.toml", _project(folder, devices).encode())


def _app_values(
    values: Mapping[str, Any], settings: Config, beside: Path
) -> tuple[dict[str, Any], Path | None]:
    """Return the values of the app's config, and the file of derived values that goes with it."""
    kept = {name: value for name, value in values.items() if name not in ("out", "compare", "made_with")}
    task, model = dict(kept.get("task", {})), dict(kept.get("model", {}))
    files = find_files(settings, beside)
    derived = files.get(DERIVED)
    if settings.task.kind in TASKS:
        task.pop("data", None)
    if derived is not None:
        task["derived"] = _DERIVED
        for key in set(TEMPLATES) & files.keys():
            del task[key.removeprefix("task.")]
    for key in (START, PATH):
        if key in files and is_local(settings, beside, key):
            model[key.removeprefix("model.")] = files[key].name
            logger.warning(
                "`%s` is not part of the app, because Flower packs no such files: every machine needs %r in "
                "$PARTITA_DATA%s.",
                key,
                files[key].name,
                " or $PARTITA_PRETRAINED" if key == PATH else "",
            )
    return {**kept, "task": task, "model": model}, derived


def _copy_own_code(values: Mapping[str, Any], beside: Path, package: Path) -> None:
    """Copy the modules beside a config that it names by import path."""
    for name in dict.fromkeys(packages_in(values)):
        if (module := beside / f"{name}.py").is_file():
            shutil.copyfile(module, package / module.name)
        elif (own := beside / name).is_dir():
            shutil.copytree(own, package / name, ignore=shutil.ignore_patterns("__pycache__"))


def _project(folder: Path, devices: int) -> str:
    """Return the app's pyproject.toml."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    home = folder.resolve().with_name(f"{folder.resolve().name}-home")
    given = {"home": str(home), "devices": devices}
    lines = [
        f"{tomli_w.dumps({own.name: given.get(own.name, own.default)}).strip()}  # {own.text}"
        for own in SETTINGS
    ]
    head = {
        "project": {
            "name": name if name[:1].isalpha() else f"app-{name}".rstrip("-"),
            "version": "1.0.0",
            "description": "A Flower app of Partita",
            "license": "Apache-2.0",
            # Partita is installed on the machines; Flower would try to install what is listed here.
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "partita",
                    "components": {
                        "serverapp": f"{PACKAGE}.app:server",
                        "clientapp": f"{PACKAGE}.app:client",
                    },
                }
            }
        },
    }
    return "\n".join([tomli_w.dumps(head), "[tool.flwr.app.config]", *lines, ""])
