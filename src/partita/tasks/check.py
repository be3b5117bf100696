"""A check of a task before a run, on the training examples of its first device."""

import contextlib
import logging
from typing import Any

import torch
from torch import Tensor

from partita.data.examples import Examples, examples_of, in_order
from partita.data.rows import BadData
from partita.errors import CannotDo, described, is_of_device
from partita.params import Params
from partita.partition import Personalization, uses_batch_statistics
from partita.protocol import DeviceId, derive_seed
from partita.tasks.build import build_model, seeded
from partita.tasks.measure import measure
from partita.tasks.task import Task

logger = logging.getLogger(__name__)


def check_task(task: Task, personalization: Personalization, *, seed: int, skips: bool = False) -> None:
    """Try the data, the loss, the predictions and the metrics on the training examples of the first device.

    Args:
        task: data, model, loss and metrics.
        personalization: how the model is split after pretraining.
        seed: the run's seed.
        skips: whether an exception in the code or the data of the device is logged and not raised.

    Raises:
        TypeError: the data, the loss or the predictions have the wrong type.
        ValueError: the loss is not a scalar or has no gradient, or the partition does not fit the model.
    """
    device = task.devices.ids[0]
    with seeded(derive_seed(seed, "check")), contextlib.suppress(CannotDo):
        own = personalization.on(device)
        partition, model = own.partition, build_model(task, own, seed=seed)
        partition.let_move(model, "personal", "shared")
        try:
            examples = _training_examples(task, device)
            if len(examples) > 1 or (len(examples) and not uses_batch_statistics(model)):
                batch, _ = next(in_order(examples, 8))
                loss = task.loss(model, batch)
                _check_loss(loss)
                _warn_of_unused(loss, partition.of(model).personal)
                _check_predictions(task.predict(model, batch))
                measure(task, model, examples)
        except Exception as error:
            if skips and (isinstance(error, BadData) or is_of_device(error)):
                logger.warning("A check of the task failed on device %r: %s.", device, described(error))
                return
            error.add_note(f"This happened in a check of the task with examples of device {device!r}.")
            raise


def _training_examples(task: Task, device: DeviceId) -> Examples:
    splits = task.devices[device]
    if not hasattr(splits, "get"):
        raise TypeError(
            "A device's data must be a mapping of splits, such as {'train': ..., 'test': ...}, "
            f"got {type(splits).__name__} on device {device!r}."
        )
    return examples_of(splits.get("train", ()))


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor):
        raise TypeError(f"`loss` must return a tensor, got {type(loss).__name__}.")
    if loss.numel() != 1:
        raise ValueError(f"`loss` must return the mean over a batch, got the shape {tuple(loss.shape)}.")
    if not loss.requires_grad:
        raise ValueError("`loss` must have a gradient, got a tensor detached from the model.")


def _warn_of_unused(loss: Tensor, personal: Params) -> None:
    """Log a warning if personal tensors have no effect on the loss: they would never be trained."""
    moving = {name: tensor for name, tensor in personal.items() if tensor.requires_grad}
    if not moving:
        return
    gradients = torch.autograd.grad(loss, list(moving.values()), allow_unused=True)
    unused = [name for name, gradient in zip(moving, gradients, strict=True) if gradient is None]
    if unused:
        logger.warning("These personal tensors have no effect on the loss: %s.", ", ".join(unused[:5]))


def _check_predictions(predicted: Any) -> None:
    if not (isinstance(predicted, tuple) and len(predicted) == 2):
        raise TypeError(f"`predict` must return predictions and targets, got {type(predicted).__name__}.")
