"""Files of tensors that carry their own digest: a safetensors file with a seal in its metadata."""

import hashlib
import json

from safetensors import SafetensorError
from torch import Tensor

from partita.params import LENGTH, Params, from_bytes, to_bytes
from partita.seals import SCHEMA

_SEAL = "partita"
"""The metadata entry of a sealed file: JSON with the digest, the schema, and texts about the tensors."""
_UNKNOWN = "0" * 64
"""Takes the place of the digest in the bytes that it is of."""
_BEGINNING = json.dumps({"__metadata__": {_SEAL: '{"sha256": "'}}, separators=(",", ":"))[:-3].encode()
"""The beginning of the header of a sealed file: the digest follows."""
_LABEL_WIDTH = 24
"""The label of a round is filled up to so many characters, so that a file's size does not depend on it."""


def sealed_pieces(params: Params, **about: str) -> tuple[bytes, memoryview]:
    """Return the tensors in the safetensors format, with texts about them, a schema version and a digest.

    The digest is that of the whole content, with zeros in its own place. The content is returned in two
    pieces, because to join them takes its memory once more.
    """
    seal = {"sha256": _UNKNOWN, "schema": SCHEMA, **about}
    content = to_bytes(params, **{_SEAL: json.dumps(seal)})
    place = LENGTH + len(_BEGINNING)
    digest = hashlib.sha256(content).hexdigest().encode()
    return content[:place] + digest, memoryview(content)[place + len(digest) :]


def sealed_bytes(params: Params, **about: str) -> bytes:
    """Return the content of `sealed_pieces`."""
    return b"".join(sealed_pieces(params, **about))


def part_pieces(params: Params, *, device: str, label: str) -> tuple[bytes, memoryview]:
    """Return the content of the file of a device's personal part after the round `label`, in two pieces."""
    return sealed_pieces(params, device=device, round=f"{label:<{_LABEL_WIDTH}}")


def about(content: bytes) -> dict[str, str] | None:
    """Return the texts that `sealed_bytes` has written about the tensors; None where there is no seal.

    >>> import torch
    >>> about(sealed_bytes({"u": torch.zeros(2)}, device="ann"))
    {'device': 'ann'}

    Args:
        content: the content of a file, or its header alone.

    Raises:
        ValueError: the header is damaged, or another version of Partita has written it.
    """
    if not content.startswith(_BEGINNING, LENGTH):
        return None
    size = int.from_bytes(content[:LENGTH], "little")
    try:
        seal = dict(json.loads(json.loads(content[LENGTH : LENGTH + size])["__metadata__"][_SEAL]))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("its header cannot be read") from None
    if seal.pop("schema", None) != SCHEMA:
        raise ValueError(f"it has another schema than {SCHEMA}, the one that this version of Partita reads")
    del seal["sha256"]
    return seal


def unsealed_tensors(content: bytes) -> dict[str, Tensor]:
    """Return the tensors that `sealed_bytes` wrote; those of a file without a seal as they are.

    Raises:
        ValueError: the content is damaged, or is not in the safetensors format.
    """
    if content.startswith(_BEGINNING, LENGTH):
        begin = LENGTH + len(_BEGINNING)
        end = begin + len(_UNKNOWN)
        digest = hashlib.sha256(content[:begin] + _UNKNOWN.encode())
        digest.update(memoryview(content)[end:])
        if content[begin:end] != digest.hexdigest().encode():
            raise ValueError("its content is not that of its sha256")
    try:
        return from_bytes(content)
    except SafetensorError as error:
        raise ValueError(f"it is not a safetensors file ({error})") from None
