"""Names and import paths in a config, resolved to the functions that they name."""

import importlib
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from partita.config.overrides import PRETRAINED
from partita.config.reading import check_type, unknown_key
from partita.errors import ConfigError, InUse, RunFailed, described, did_you_mean, is_fault

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
    PRETRAINED: "partita.models.pretrained:Pretrained",
}
_SECTION_KEYS = {"task": ("kind", "validation"), "model": ("name", "start", "start_names")}
"""Keys of a section that are not arguments of the function that it names."""
OPTIMIZERS = {"sgd": "partita.methods.sgd:SGD", "adamw": "torch.optim:AdamW"}


def load(key: str, value: str, known: Mapping[str, str]) -> Any:
    """Return the object with a name or an import path, `package.module:function`.

    Args:
        key: the key of the config, for messages.
        value: the name or the import path.
        known: import paths by name.

    Raises:
        ConfigError: there is no such name, or the path does not import.
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
        ConfigError: the keys do not match the arguments, or the function fails.
    """
    with own_code(check_call(key, function, options, prefix=prefix)):
        return function(**options)


def check_call(
    key: str, function: Callable[..., Any], options: Mapping[str, Any], *, prefix: str = ""
) -> str:
    """Check the keys of a section against the arguments of a function, and return a name for its errors.

    Raises:
        ConfigError: the keys do not match the arguments.
    """
    if not callable(function):
        raise ConfigError(f"[{key}] needs a function, got {function!r}.")
    name = getattr(function, "__name__", key)
    try:
        signature = inspect.signature(function)
    except ValueError:  # Some built-in functions have no signature.
        signature = inspect.Signature([inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)])
    _check_options(key, name, signature, options, prefix)
    return f"[{key}] {name}"


def taken(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are arguments of a function."""
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    return {name: value for name, value in options.items() if name in known}


def takes(name: str, function: Callable[..., Any]) -> bool:
    """Return whether a function has an argument of this name, or takes any."""
    try:
        known = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == name or p.kind is inspect.Parameter.VAR_KEYWORD for p in known)


def _check_options(
    key: str, name: str, signature: inspect.Signature, options: Mapping[str, Any], prefix: str
) -> None:
    known = signature.parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        for option in options:
            if option not in known:
                keys = [*_SECTION_KEYS.get(key, ()), *(prefix + each for each in known)]
                raise unknown_key(f"{key}.", prefix + option, keys, of=name)
    for option, parameter in known.items():
        is_given = option in options or parameter.default is not parameter.empty
        if not is_given and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            raise ConfigError(f"[{key}] {name} needs a value for `{prefix}{option}`.")
    for option, value in options.items():
        kind = known[option].annotation if option in known else Any
        if kind in (int, float, bool, str):
            check_type(value, kind, f"{key}.{prefix}{option}")


@contextmanager
def own_code(what: str) -> Iterator[None]:
    """Turn an exception of code that a config names into an error of one line, with file and line number."""
    try:
        yield
    except (ConfigError, InUse, RunFailed):
        raise
    except Exception as error:
        if is_fault(error):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        if isinstance(error, TypeError | ValueError) and _is_ours(last.filename):
            raise ConfigError(f"{what}: {' '.join(str(error).split())}") from error
        raise ConfigError(f"{what} failed: {described(error)}.") from error


def _is_ours(file: str) -> bool:
    return Path(__file__).parents[1] in Path(file).parents
