"""Frozen tensors that came unchanged from a file: a run names them, and does not write them again.

The pretrained model in a run's folder is all of w_g. Where it began with a file, `model.start`, its frozen
tensors are still those of the file, which may be large. Then the run's file has the others, and the names of
these; `config.toml` has the path of `model.start` and its digest.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from partita.data.digests import describe_file, places_of
from partita.errors import ConfigError
from partita.params import Params
from partita.sealed_tensors import about, sealed_bytes, unsealed_tensors
from partita.seals import damaged

_FROZEN = "frozen"
_START = "model.start"


def bytes_without(params: Params, frozen: Mapping[str, str]) -> bytes:
    """Return tensors in the safetensors format, sealed, with those in `frozen` by name alone.

    Args:
        params: the tensors.
        frozen: the name in the file of each tensor that came unchanged from it.
    """
    named = {name: given for name, given in sorted(frozen.items()) if name in params}
    written = {name: tensor for name, tensor in params.items() if name not in named}
    return sealed_bytes(written, **({_FROZEN: json.dumps(named)} if named else {}))


def whole_tensors(
    file: Path, content: bytes, started: Callable[[], Params] | None = None
) -> dict[str, Tensor]:
    """Return the tensors in the content of a file, and those that it has by name alone.

    Args:
        file: the file, which errors name.
        content: its content.
        started: returns the tensors of the run's `model.start`; None where no run has written the file.

    Raises:
        Damaged: the content is not as it was written.
        ConfigError: tensors are by name alone in a file that is outside of its run's folder.
    """
    try:
        tensors, frozen = unsealed_tensors(content), frozen_in(content)
    except ValueError as error:
        raise damaged(file, str(error)) from None
    if not frozen:
        return tensors
    if started is None:
        raise ConfigError(
            f"`{file}` is a copy of a file of a run, and the frozen part of its model is not in it: give the "
            "file in the run's folder."
        )
    known = started()
    return {**tensors, **{name: known[given] for name, given in frozen.items()}}


def frozen_in(content: bytes) -> dict[str, str]:
    """Return the tensors that the content of a file has by name alone, with their names in `model.start`."""
    return json.loads((about(content) or {}).get(_FROZEN, "{}"))


def start_file(folder: Path, values: Mapping[str, Any]) -> Path:
    """Return the file that the run in a folder began with, which must have the same content as then.

    Raises:
        ConfigError: it is gone, or has other content.
    """
    name, recorded = values["model"]["start"], values["made_with"][_START]
    existing = [place for place in places_of(name, folder, is_recorded=True) if place.exists()]
    if not existing:
        raise ConfigError(
            f"`{folder}` has the frozen part of its model in `{_START}`, {name!r}, which is gone: restore it."
        )
    for place in existing:
        if describe_file(place) == recorded:
            return place
    raise ConfigError(
        f"`{folder}` has the frozen part of its model in `{_START}`, `{existing[0].resolve()}`, which has "
        "other content than when the run started: restore the original file."
    )
