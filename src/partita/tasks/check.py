"""A look at a task before a run: a few examples of its first device, so that mistakes show at once."""

from typing import Any

from torch import Tensor

from partita.data.examples import examples_of, in_order
from partita.protocol import derive_seed
from partita.tasks.build import build_model, seeded
from partita.tasks.task import Task


def check_task(task: Task, *, seed: int) -> None:
    """Try the data, the loss and the predictions on a few examples of the first device.

    Raises:
        TypeError: one of them is not of the kind that a task needs.
        ValueError: the loss is not one number, or has no gradient.
    """
    device = task.devices.ids[0]
    splits = task.devices[device]
    if not hasattr(splits, "get"):
        raise TypeError(
            "A device's data must be a mapping of splits, such as {'train': ..., 'test': ...}, "
            f"got {type(splits).__name__} on device {device!r}."
        )
    examples = examples_of(splits.get("train", ()))
    if not len(examples):
        return
    with seeded(derive_seed(seed, "check")):
        model = build_model(task, seed=seed).train()
        try:
            batch, _ = next(in_order(examples, 8))
            _check_loss(task.loss(model, batch))
            _check_predictions(task.predict(model, batch))
        except Exception as error:
            error.add_note(f"When the task was tried on a few examples of device {device!r}.")
            raise


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor):
        raise TypeError(f"`loss` must return a tensor, got {type(loss).__name__}.")
    if loss.numel() != 1:
        raise ValueError(f"`loss` must return the mean over a batch, got the shape {tuple(loss.shape)}.")
    if not loss.requires_grad:
        raise ValueError("`loss` must have a gradient, got a tensor that is detached from the model.")


def _check_predictions(predicted: Any) -> None:
    if not (isinstance(predicted, tuple) and len(predicted) == 2):
        raise TypeError(f"`predict` must return predictions and targets, got {type(predicted).__name__}.")
