"""Names and import paths in a config: what they stand for, and which code that is."""

import hashlib
import importlib
import inspect
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from partita.config.methods import NAMED
from partita.config.reading import check_type, did_you_mean
from partita.config.schema import Config
from partita.errors import ConfigError

TASKS = {
    "digits": "partita.tasks.digits:digits",
    "image": "partita.tasks.image:image",
    "text": "partita.tasks.text:text",
    "speech": "partita.tasks.speech:speech",
    "tabular": "partita.tasks.tabular:tabular",
    "synthetic": "partita.tasks.synthetic:synthetic",
}
MODELS = {
    "convnet": "partita.models.convnet:ConvNet",
    "resnet": "partita.models.resnet:ResNet",
    "transformer": "partita.models.transformer:NextWordTransformer",
    "speech": "partita.models.speech:SpeechTransformer",
}
METHODS = {name: named.local for name, named in NAMED.items()}
OPTIMIZERS = {"sgd": "partita.methods.sgd:SGD", "adamw": "torch.optim:AdamW"}
SERVER_OPTIMIZERS = {
    "fedavg": "partita.server.optimizers:Averaging",
    "fedadam": "partita.server.optimizers:Adam",
    "fedadagrad": "partita.server.optimizers:Adagrad",
    "fedyogi": "partita.server.optimizers:Yogi",
}

COMMAND = "command"
"""The key under which a recorded run says what was typed to ask for it."""
_CODE = "code"
"""The key under which a recorded run says in which folders its own code was."""


def load(key: str, value: str, known: Mapping[str, str]) -> Any:
    """Return what a name or an import path `package.module:function` stands for.

    Raises:
        ConfigError: it is neither, or does not import.
    """
    path = known.get(value, value)
    module, colon, attribute = path.partition(":")
    if not colon:
        one_of = f"one of {', '.join(known)} or " if known else ""
        raise ConfigError(
            f"`{key}` must be {one_of}an import path such as 'package.module:function', got {value!r}."
            f"{did_you_mean(value, list(known))}"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"`{key}` = {value!r} does not import: {type(error).__name__}: {reason}."
        ) from error


def call(key: str, function: Callable[..., Any], options: Mapping[str, Any], *, prefix: str = "") -> Any:
    """Call a function that a config names with the keys of its section.

    Args:
        key: the section.
        function: the function.
        options: its arguments.
        prefix: the text that keys of the section have before the names of arguments.

    Raises:
        ConfigError: the keys do not fit, or the function fails.
    """
    if not callable(function):
        raise ConfigError(f"[{key}] needs a function, got {function!r}.")
    name = getattr(function, "__name__", key)
    try:
        signature = inspect.signature(function)
    except ValueError:  # Some built-in functions have none to look at.
        signature = inspect.Signature([inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)])
    _check_options(key, name, signature, options, prefix)
    with own_code(f"[{key}] {name}"):
        return function(**options)


def taken(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options that a function takes by name."""
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    return {name: value for name, value in options.items() if name in known}


def takes(name: str, function: Callable[..., Any]) -> bool:
    """Return whether a function takes an option of this name, or any."""
    try:
        known = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == name or p.kind is inspect.Parameter.VAR_KEYWORD for p in known)


def _check_options(
    key: str, name: str, signature: inspect.Signature, options: Mapping[str, Any], prefix: str
) -> None:
    try:
        signature.bind(**options)
    except TypeError as error:
        raise ConfigError(f"The keys of [{key}] do not fit {name}{signature}: {error}.") from None
    for option, value in options.items():
        kind = signature.parameters[option].annotation if option in signature.parameters else Any
        if kind in (int, float, bool, str):
            check_type(value, kind, f"{key}.{prefix}{option}")


@contextmanager
def own_code(what: str) -> Iterator[None]:
    """Turn what goes wrong in code that a config names into one line, with the place where it did."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        places = traceback.extract_tb(error.__traceback__)
        if isinstance(error, TypeError | ValueError) and _is_ours(places[-1].filename):
            raise ConfigError(f"{what}: {reason}") from error
        own = [p for p in places if "site-packages" not in p.filename and not _is_ours(p.filename)]
        place = (own or places)[-1]
        where = f"{Path(place.filename).name}, line {place.lineno}"
        raise ConfigError(f"{what} failed: {type(error).__name__}: {reason} ({where}).") from error


def _is_ours(file: str) -> bool:
    return Path(__file__).parents[1] in Path(file).parents


def made_with(config: Config, folder: Path, *others: Config) -> dict[str, str]:
    """Return the versions of what makes runs, and of own code its version, the file's hash and its place."""
    versions = {"python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in ("partita", "torch", "numpy")}
    places: set[str] = set()
    paths = [path for each in (config, *others) for path in _paths(each)]
    for module in sorted({path.partition(":")[0] for path in paths if ":" in path}):
        source = inspect.getsourcefile(importlib.import_module(module))
        if source is None:
            continue
        file = Path(source).resolve()
        versions[module] = f"{_version(module)}sha256 {hashlib.sha256(file.read_bytes()).hexdigest()}"
        root = file.parents[module.count(".") + (file.name == "__init__.py")]
        if not any(root.is_relative_to(prefix) for prefix in (sys.prefix, sys.base_prefix)):
            places.add(os.path.relpath(root, folder.resolve()))
    return versions | ({_CODE: os.pathsep.join(sorted(places))} if places else {})


def still_made_with(config: Config, folder: Path) -> dict[str, str]:
    """Return what a recorded run was made with, and what it uses besides from now on."""
    now = made_with(config, folder)
    return {**now, **config.made_with, **({_CODE: now[_CODE]} if _CODE in now else {})}


def _paths(config: Config) -> list[str]:
    """Return what may be import paths in a config."""
    paths = [config.task.kind, config.model.name, config.personalize.method]
    paths += [config.pretrain.optimizer, config.personalize.optimizer, config.finetune.optimizer]
    paths += [config.pretrain.server_optimizer, config.personalize.server_optimizer]
    return [*paths, str(config.partition.adapter_width), *config.report.watchers]


def _version(module: str) -> str:
    """Return the name and version of the installed package that a module belongs to, if one does."""
    owners = _owners().get(module.partition(".")[0], [])
    return f"{owners[0]} {metadata.version(owners[0])}, " if owners else ""


@cache
def _owners() -> Mapping[str, list[str]]:
    """Return which packages modules belong to; asked once, since it reads the records of all packages."""
    return metadata.packages_distributions()


def find_code(config: Config, beside: Path) -> None:
    """Let import paths name modules where a recorded run found them, here, or beside the config."""
    recorded = config.made_with.get(_CODE, "")
    places = [beside.resolve() / place for place in recorded.split(os.pathsep) if place]
    folders = [str(folder) for folder in (*places, Path.cwd(), beside)]
    sys.path[:] = [*folders, *(folder for folder in sys.path if folder not in folders)]


def changed_code(config: Config, folder: Path) -> list[str]:
    """Return a sentence for each thing that a recorded run was made with and that is another one now."""
    now = made_with(config, folder)
    return [
        f"The run was made with {name} {was}; now it is {now[name]}."
        for name, was in config.made_with.items()
        if name != _CODE and now.get(name, was) != was
    ]
