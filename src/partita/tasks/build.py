"""Building a run's model, from random numbers that derive from the run's seed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from partita.params import Params, copy_into
from partita.partition import Partition
from partita.protocol import derive_seed
from partita.tasks.task import Task


def build_model(
    task: Task, partition: Partition | None = None, *, seed: int, state: Params | None = None
) -> nn.Module:
    """Return the task's model, with the values of `state` where given, prepared for `partition`."""
    with seeded(derive_seed(seed, "model")):
        model = task.model()
    if state is not None:
        plain = Partition(model)
        copy_into(plain.of(model).shared, state)
    if partition is not None:
        with seeded(derive_seed(seed, "prepare")):
            model = partition.prepare(model)
    return model


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw torch's random numbers from `seed` in this block, and go on as before after it."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
