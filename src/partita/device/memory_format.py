"""Batches of images in channels-last memory format, in which convolutions and pooling on the CPU are faster.

The values of a batch stay the same, only the order in which memory holds them changes. Most models do not
depend on it. Some do, such as one that calls `view` on the output of a convolution, and GroupNorm of torch
2.13 crashes in this format where its input takes no gradient. So a model gets such batches only if all that
it does with images is known to work, and a trial gives the same loss.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from partita.data.examples import Batch, Examples, examples_of
from partita.protocol import derive_seed
from partita.reuse.rowwise import tensors_in
from partita.reuse.settling import unchanged
from partita.tasks.build import one_thread, seeded
from partita.tasks.task import Task

logger = logging.getLogger(__name__)

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
_IMAGES = 4
"""Dimensions of a batch of images: examples, channels, height and width."""
_TRIED_DEVICES = 20
_TRIED_EXAMPLES = 2
"""With fewer, strides of the examples would not matter."""
_TOLERANCE = 1e-3
"""The largest relative difference of a loss by rounding."""
_KNOWN = frozenset(
    [
        *("convolution", "native_batch_norm", "mean", "sum"),
        *("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d"),
        *(
            "relu",
            "leaky_relu",
            "elu",
            "silu",
            "gelu",
            "hardswish",
            "hardtanh",
            "sigmoid",
            "tanh",
            "softplus",
        ),
        *("add", "sub", "mul", "div", "where", "bernoulli"),
        *("view", "_unsafe_view", "permute", "select", "slice", "unbind", "unsqueeze", "detach", "alias"),
        *("cat", "stack", "flip", "constant_pad_nd", "clone", "_to_copy", "empty_like", "new_empty"),
    ]
)
"""Names of torch's operations, those in place without their last `_`, that have been tried in this format."""


@dataclass(frozen=True)
class ChannelsLast:
    """Examples whose batches of images are in channels-last memory format."""

    examples: Examples

    def __len__(self) -> int:
        return len(self.examples)

    def batch_at(self, positions: Tensor) -> Batch:
        """Return the examples at `positions` as one batch."""
        return channels_last(self.examples.batch_at(positions))


def channels_last(batch: Batch) -> Batch:
    """Return a batch with images in channels-last memory format, found in tuples, lists and dicts.

    >>> channels_last([torch.ones(2, 3, 4, 5)])[0].stride()
    (60, 1, 15, 3)
    """
    if isinstance(batch, Tensor):
        return _channels_last(batch) if batch.dim() == _IMAGES else batch
    if type(batch) in (tuple, list):
        return type(batch)(map(channels_last, batch))
    if type(batch) is dict:
        return {name: channels_last(field) for name, field in batch.items()}
    return batch


def computes_channels_last(task: Task, model: nn.Module, *, seed: int) -> bool:
    """Return whether visits compute with batches in channels-last memory format.

    They do if the model has convolutions of images, all that happens to two of the task's examples is known,
    and their loss is the same in this format. The model is as before afterwards.
    """
    if not any(isinstance(module, _CONVOLUTIONS) for module in model.modules()):
        return False
    batch = _tried_batch(task)
    if not _has_images(batch):
        return False
    with one_thread(), seeded(derive_seed(seed, "memory format")), unchanged(model):
        try:
            obstacle = _obstacle(task, model, batch)
        except Exception as error:  # Where the format is not the cause, visits will raise it again.
            obstacle = f"{type(error).__name__}: {error}"
    if obstacle:
        logger.debug("Batches keep their memory format: %s.", obstacle)
    return not obstacle


def _tried_batch(task: Task) -> Batch:
    """Return a small batch of the first device that has training examples, None if none has."""
    for device in task.devices.ids[:_TRIED_DEVICES]:
        with suppress(Exception):  # A visit of this device will raise it again.
            examples = examples_of(task.devices[device].get("train", ()))
            if len(examples):
                return examples.batch_at(torch.arange(_TRIED_EXAMPLES) % len(examples))
    return None


def _has_images(batch: Batch) -> bool:
    if isinstance(batch, Tensor):
        return batch.dim() == _IMAGES
    fields: Sequence[Any] = list(batch.values()) if isinstance(batch, Mapping) else batch
    return isinstance(fields, list | tuple) and any(map(_has_images, fields))


def _obstacle(task: Task, model: nn.Module, batch: Batch) -> str:
    """Return why visits cannot compute in another memory format, "" if they can.

    Raises:
        Exception: training or prediction fails.
    """
    arranged = channels_last(batch)
    with _Operations() as operations:
        task.loss(model.train(), batch)
        _evaluated(task, model, batch)
    if unknown := operations.on_images - _KNOWN:
        return f"`{min(unknown)}` has not been tried in another"
    loss = task.loss(model.train(), arranged)
    if loss.requires_grad:
        loss.backward()
    before, after = (_evaluated(task, model, each) for each in (batch, arranged))
    is_same = math.isclose(before, after, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return "" if is_same else f"the loss is {before} in this and {after} in another"


def _evaluated(task: Task, model: nn.Module, batch: Batch) -> float:
    """Return the loss of a batch in eval mode; predict it, too."""
    loss = task.loss(model.eval(), batch).item()
    with torch.no_grad():
        task.predict(model, batch)
    return loss


class _Operations(TorchDispatchMode):
    """Notes the operations that take or return a tensor of four dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.on_images: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(tensor.dim() == _IMAGES for tensor in tensors_in((args, kwargs, result))):
            self.on_images.add(func.overloadpacket.__name__.rstrip("_"))
        return result


def _channels_last(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        # It has both formats, and is in the one that its strides say.
        _, channels, height, width = images.shape
        return images.contiguous().as_strided(images.shape, (height * width, channels, width, channels))
    return images.contiguous(memory_format=torch.channels_last)
