"""The batches of a visit, and the number of steps on them."""

import logging
from collections.abc import Callable

import torch
from torch import nn

from partita.data.examples import Examples, Shuffled, batches_per_epoch
from partita.errors import CannotDo
from partita.methods.descent import Steps
from partita.methods.method import Finetuning, Method
from partita.partition import uses_batch_statistics
from partita.protocol import DeviceId, Pace

logger = logging.getLogger(__name__)


def draw_batches(
    examples: Examples, batch_size: int, model: nn.Module, *, seed: int, leave_out: Callable[[], None]
) -> Shuffled:
    """Return the batches of a visit; one of a single example is left out where BatchNorm needs two.

    Args:
        examples: the device's training examples.
        batch_size: examples in a batch.
        model: the model, whose modules say how they are set when a pass begins.
        seed: the seed of the permutations.
        leave_out: called where a batch is left out.
    """

    def leaves_out_one() -> bool:
        if not uses_batch_statistics(model):
            return False
        if min(len(examples), batch_size) == 1:
            cause = "The device has one training example" if len(examples) == 1 else "`batch_size` is 1"
            raise CannotDo(f"{cause}: BatchNorm needs at least 2 in a batch to train.")
        leave_out()
        return True

    return Shuffled(examples, batch_size, torch.Generator().manual_seed(seed), leaves_out_one)


LEFT_OUT = (
    "BatchNorm cannot be trained on a batch of one example: where the last batch of a pass has one, as on "
    "device %r, it is left out."
)

Warn = Callable[[str, DeviceId], object]
"""Called with a warning, and the device that it names, as often as there is a reason for it."""


class Warnings:
    """Logs each warning once, with the first device that has a reason for it."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def __call__(self, warning: str, device: DeviceId) -> None:
        """Log a warning that has not been logged."""
        if warning not in self._logged:
            self._logged.add(warning)
            logger.warning(warning, device)


def count_steps(settings: Method | Finetuning, pace: Pace, examples: Examples) -> Steps:
    """Return the steps on one part of the model."""
    in_pass = batches_per_epoch(examples, settings.batch_size)
    ends_with_one = in_pass > 1 and len(examples) - (in_pass - 1) * settings.batch_size == 1
    return Steps(
        count=pace.steps or pace.epochs * in_pass,
        lr=pace.lr,
        max_grad_norm=settings.max_grad_norm,
        optimizer=settings.optimizer,
        one_example_every=in_pass if ends_with_one and not pace.steps else 0,
    )
