"""Building a run's model, from random numbers that derive from the run's seed."""

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from partita.params import Params, copy_into
from partita.partition import Partition
from partita.protocol import derive_seed
from partita.tasks.task import Task


def build_model(
    task: Task, partition: Partition | None = None, *, seed: int, state: Params | None = None
) -> nn.Module:
    """Return the task's model, with the values of `state` where given, prepared for `partition`.

    A copy, so that a task whose function hands out the same model again is not trained behind its back.
    """
    with one_thread():
        with seeded(derive_seed(seed, "model")):
            model = copy.deepcopy(task.model())
        if state is not None:
            copy_into(Partition(model).of(model).shared, state)
        if partition is not None:
            with seeded(derive_seed(seed, "prepare")):
                model = partition.prepare(model)
    return model


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw the random numbers of torch, NumPy and Python from `seed` in this block, and go on as before."""
    with random_numbers_kept():
        seed_everything(seed)
        yield


def seed_everything(seed: int) -> None:
    """Draw the random numbers of torch, NumPy and Python from `seed` from now on."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Go on with the caller's random numbers after this block, whatever is drawn in it."""
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread inside of an operation in this block: other numbers of threads give other bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
