"""A model in a safetensors file: its tensors, and everything that is needed to build and use it.

The file's metadata has one entry, JSON: how the model is built (`exports.recipes`), what it was trained for,
and which run and device it is of. Reading a file runs no code that the file contains, and no code that the
file names unless it is Partita's own or the caller allows it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor, nn

from partita.errors import ConfigError, described, raise_fault
from partita.exports.recipes import Recipe, recipe_from, shapes_without_memory
from partita.params import copy_into, digest_of, from_bytes, metadata_of, to_bytes
from partita.partition import Partition

_ENTRY = "partita"
_FORMAT = 1
"""The version of the metadata: a file with another one is refused."""


def model_bytes(model: nn.Module, recipe: Recipe, metadata: Mapping[str, Any]) -> bytes:
    """Return the content of a model's file."""
    tensors = _tensors_of(model)
    build = {"build": recipe.to_values(), "digest": digest_of(tensors)}
    values = {"format": _FORMAT, **metadata, **build}
    return to_bytes(tensors, **{_ENTRY: json.dumps(values, allow_nan=False)})


def load(path: str | Path, *, user_code: bool = False) -> nn.Module:
    """Return the model in a file that `partita export` wrote, in eval mode.

    Neither the run nor its data are needed.

    Args:
        path: the file.
        user_code: whether to import and call the function that builds the model where it is not Partita's.
            Allow it only for files that you trust.

    Raises:
        ConfigError: there is no such file, it is damaged, or its model cannot be built here.
    """
    content = _read(Path(path))
    return model_from(content, f"`{path}`", user_code=user_code)


def model_metadata(path: str | Path) -> dict[str, Any]:
    """Return what a file that `partita export` wrote says about its model.

    Args:
        path: the file.

    Raises:
        ConfigError: there is no such file, or it is no model's.
    """
    return _opened(_read(Path(path)), f"`{path}`")[0]


def model_from(content: bytes, name: str, *, user_code: bool) -> nn.Module:
    """Return the model in the content of a file; `name` is the file's in messages."""
    values, tensors = _opened(content, name)
    recipe = recipe_from(values.get("build", {}))
    if recipe.user_code and not user_code:
        raise ConfigError(
            f"The model in {name} is built by `{recipe.user_code}`, which is not Partita's code: if you "
            "trust the file, `partita.load(..., user_code=True)` imports and calls it."
        )
    try:
        if not recipe.user_code:
            _check_shapes(recipe, tensors)
        model = recipe.build()
        copy_into(_tensors_of(model), tensors)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"The model in {name} cannot be built: {described(error)}.") from error
    return model.eval()


def _check_shapes(recipe: Recipe, tensors: Mapping[str, Tensor]) -> None:
    """Raise where a model would have other tensors than a file, before it takes any memory."""
    shapes = shapes_without_memory(recipe)
    for name, tensor in tensors.items():
        if shapes.get(name) != tensor.shape:
            raise ValueError(f"`{name}` has the shape {tuple(tensor.shape)} in the file, not in the model")
    if unknown := [name for name, shape in shapes.items() if name not in tensors and shape.numel() > 0]:
        sizes = {tensor.shape for tensor in tensors.values()}
        if any(shapes[name] not in sizes for name in unknown):  # Another name of a tied tensor has its shape.
            raise ValueError(f"`{unknown[0]}` is missing")


def _tensors_of(model: nn.Module) -> Mapping[str, Tensor]:
    """Return the tensors of a model, each under its first name."""
    return Partition(model, shared="*").of(model).shared


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"There is no file `{path}`.") from None
    except OSError as error:
        raise_fault(error, path)
        raise ConfigError(f"Cannot read `{path}`: {error.strerror}.") from None


def _opened(content: bytes, name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the metadata and the tensors in the content of a file."""
    try:
        tensors = from_bytes(content)
        entries = metadata_of(content)
        values = json.loads(entries[_ENTRY]) if _ENTRY in entries else None
    except (SafetensorError, ValueError) as error:
        raise ConfigError(f"{name} is damaged, or not a safetensors file: {error}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{name} is not a model's file: write one with `partita export`.")
    if values.get("format") != _FORMAT:
        raise ConfigError(
            f"{name} has the format {values.get('format')!r}, and this version of Partita reads {_FORMAT}: "
            "use the version that wrote it."
        )
    if values.get("digest") != digest_of(tensors):
        raise ConfigError(f"{name} is damaged: its tensors are not those that were written. Export it again.")
    return values, tensors
