"""Frozen tensors that came unchanged from a file: a run names them, and does not write them again.

The pretrained model in a run's folder is all of w_g. Where it began with a file, `model.start`, its frozen
tensors are still those of the file, which may be large. Then the run's file has the others, and the names of
these; `config.toml` has the path of `model.start` and its digest.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.data.digests import describe_file, places_of
from partita.errors import ConfigError
from partita.params import Params, about, sealed_bytes

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
