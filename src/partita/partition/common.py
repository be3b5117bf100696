"""Tensors that all copies of a model in a process have in common: a pretrained base, read from its file once.

They are frozen, and known by their digests: copying the model copies none of them, and a run writes none of
them. A partition that selects one of them as shared or personal gives the model its own copy of it.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn, uint8
from torch.utils.weak import WeakTensorKeyDictionary

from partita.params import Params, digest_of
from partita.partition.tensors import tensors_of

_DIGESTS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""The version and the digest of every common tensor."""


def make_common(tensors: Iterable[Tensor]) -> None:
    """Let all copies of the models that hold some tensors have these in common; they take no gradient."""
    for tensor in tensors:
        tensor.requires_grad_(False)
        _DIGESTS[tensor] = tensor._version, _digest(tensor)  # noqa: SLF001


def is_common(tensor: Tensor) -> bool:
    """Return whether all copies of a model have a tensor in common."""
    return tensor in _DIGESTS


def common_names(model: nn.Module) -> frozenset[str]:
    """Return the names of a model's tensors that it has in common with its copies."""
    return frozenset(name for name, tensor in tensors_of(model).items() if is_common(tensor))


def common_memo(model: nn.Module) -> dict[int, Tensor]:
    """Return the `memo` with which `copy.deepcopy` of a model leaves its common tensors as they are."""
    tensors = (*model.parameters(), *model.buffers())
    return {id(tensor): tensor for tensor in tensors if is_common(tensor)}


def digest_of_frozen(params: Params) -> str:
    """Return a digest of frozen tensors; common ones are hashed once in a process.

    Raises:
        ValueError: something has changed a common tensor.
    """
    own = {name: tensor for name, tensor in params.items() if not is_common(tensor)}
    if len(own) == len(params):
        return digest_of(params)
    common = {name: _known(name, tensor) for name, tensor in params.items() if name not in own}
    lines = [f"{digest} {name}" for name, digest in sorted(common.items())]
    return hashlib.sha256("\n".join([digest_of(own), *lines]).encode()).hexdigest()


def _known(name: str, tensor: Tensor) -> str:
    version, digest = _DIGESTS[tensor]
    if tensor._version != version:  # noqa: SLF001
        raise ValueError(
            f"`{name}` is frozen, and all copies of the model have it: something has changed it."
        )
    return digest


def _digest(tensor: Tensor) -> str:
    about = f"{tensor.dtype} {tuple(tensor.shape)}\n".encode()
    content: Any = tensor.detach().contiguous().flatten().view(uint8).numpy()
    return hashlib.sha256(about + hashlib.sha256(content).digest()).hexdigest()
