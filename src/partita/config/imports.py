"""Names and import paths in a config: what they stand for, and which code that is."""

import hashlib
import importlib
import inspect
import platform
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from partita.config.reading import did_you_mean
from partita.config.schema import Config
from partita.errors import ConfigError

TASKS = {"digits": "partita.tasks.digits:digits"}
MODELS = {"convnet": "partita.models.convnet:ConvNet"}
METHODS = {
    "fedavg": "partita.local.plain:LocalSGD",
    "fedalt": "partita.local.alternating:LocalAlt",
    "fedsim": "partita.local.simultaneous:LocalSim",
}
OPTIMIZERS = {"sgd": "partita.local.sgd:SGD", "adamw": "torch.optim:AdamW"}


def load(key: str, value: str, known: Mapping[str, str]) -> Any:
    """Return what a name or an import path `package.module:function` stands for.

    Raises:
        ConfigError: it is neither, or does not import.
    """
    path = known.get(value, value)
    module, colon, attribute = path.partition(":")
    if not colon:
        hint = did_you_mean(value, list(known))
        raise ConfigError(
            f"`{key}` must be one of {', '.join(known)} or an import path such as 'package.module:function', "
            f"got {value!r}.{hint}"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise ConfigError(f"`{key}` = {value!r} does not import: {type(error).__name__}: {error}.") from error


def call(key: str, function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Return what a function of the user's gives for the keys of its section."""
    if not callable(function):
        raise ConfigError(f"[{key}] needs a function, got {function!r}.")
    signature = inspect.signature(function)
    try:
        signature.bind(**options)
    except TypeError as error:
        name = getattr(function, "__name__", key)
        raise ConfigError(f"The keys of [{key}] do not fit {name}{signature}: {error}.") from None
    try:
        return function(**options)
    except ValueError as error:
        raise ConfigError(f"[{key}] {error}") from error


def made_with(config: Config, *, beside: str = "") -> dict[str, str]:
    """Return the versions of what makes a run; of own code also the file's hash and what it lies `beside`."""
    versions = {"python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in ("partita", "torch", "numpy")}
    paths = [config.task.kind, config.model.name, config.pretrain.optimizer]
    paths += [config.personalise.method, config.personalise.optimizer, config.finetune.optimizer]
    own = sorted({path.partition(":")[0] for path in paths if ":" in path})
    owners = metadata.packages_distributions() if own else {}
    for module in own:
        file = inspect.getsourcefile(importlib.import_module(module))
        if file is None:
            continue
        package = owners.get(module.partition(".")[0], [""])[0]
        version = f"{package} {metadata.version(package)}, " if package else ""
        with Path(file).open("rb") as source:
            versions[module] = f"{version}sha256 {hashlib.file_digest(source, 'sha256').hexdigest()}"
    return versions | ({"beside": beside} if own else {})


def import_from(*folders: str) -> None:
    """Let import paths name modules in these folders, the first one first."""
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
