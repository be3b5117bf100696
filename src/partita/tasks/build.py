"""Building a run's model, with random numbers that derive from the run's seed."""

import copy
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from partita.params import Params, copy_into
from partita.partition import Partition, Personalization
from partita.partition.common import common_names
from partita.partition.selection import exactly
from partita.partition.tensors import tensors_of
from partita.partition.ties import own_common
from partita.protocol import Stage, derive_seed
from partita.tasks.process import prepare_process
from partita.tasks.task import Task

_INITIAL: WeakKeyDictionary[Task, dict[int, nn.Module]] = WeakKeyDictionary()
"""The initial models of tasks by seed, as long as the task is alive."""


def initial_model(task: Task, *, seed: int) -> nn.Module:
    """Return the task's model as its function builds it, to read from: nothing may change it.

    A process calls the function once for each task and seed: it may load or download weights.
    """
    models = _INITIAL.setdefault(task, {})
    if seed not in models:
        prepare_process()
        with one_thread(), seeded(derive_seed(seed, "model")):
            models[seed] = task.model()
    return models[seed]


def build_model(
    task: Task, personalization: Personalization | None = None, *, seed: int, state: Params | None = None
) -> nn.Module:
    """Return a copy of the initial model, with the values of `state` where given, prepared to personalize."""
    with one_thread():
        model = copy.deepcopy(initial_model(task, seed=seed))
        if state is not None:
            own_common(model, state.keys())
            copy_into(_without_frozen(model, personalization, state), state)
        if personalization is not None:
            with seeded(derive_seed(seed, "prepare")):
                model = personalization.prepare(model)
    return model


def _without_frozen(model: nn.Module, own: Personalization | None, state: Params) -> Params:
    """Return the tensors of a plain model, without frozen ones that `state` lacks: these are as they were."""
    frozen = common_names(model) | (own.partition.frozen_before.always if own else frozenset[str]())
    tensors = Partition(model, shared="*").of(model).shared
    return {name: tensor for name, tensor in tensors.items() if name in state or name not in frozen}


def split_by_stage(
    task: Task, personalization: Personalization, *, seed: int, pretrains: bool = True
) -> dict[Stage, Personalization]:
    """Return how the model is split in each stage: pretraining shares everything that is not frozen.

    Parameters that only `prepare` fixes are frozen after pretraining.

    Raises:
        ValueError: pretraining would train nothing, or a tensor that is frozen later and does not exist yet.
    """
    before = personalization.partition.frozen_before
    if before.unknown and pretrains:
        raise ValueError(
            f"`{min(before.unknown)}` is frozen and does not exist before `prepare`: pretraining would "
            "change it."
        )
    model = initial_model(task, seed=seed)
    state = tensors_of(model)
    whole = Partition(model, shared=exactly(state.keys() - before.always), frozen=exactly(before.always))
    if pretrains and not whole.trained("shared"):
        raise ValueError("Pretraining would train nothing: every parameter is frozen. Set its rounds to 0.")
    return {
        Stage.PRETRAINED: Personalization(whole),
        Stage.PERSONALIZED: personalization,
        Stage.FINETUNED: personalization,
    }


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch, NumPy and Python inside this block, and restore their random state after it."""
    with preserved_random_state():
        seed_everything(seed)
        yield


def seed_everything(seed: int, accelerator: torch.device | None = None) -> None:
    """Seed torch, NumPy and Python, and an accelerator's generator where one is given."""
    torch.default_generator.manual_seed(seed)
    if accelerator is not None and accelerator.type == "cuda":
        with torch.cuda.device(accelerator):
            torch.cuda.manual_seed(seed)
    elif accelerator is not None and accelerator.type == "mps":
        torch.mps.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def random_state() -> tuple[Any, ...]:
    """Return the state of all random numbers, by which it is seen whether some were drawn."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    states = [state.numpy().tobytes() for state in (torch.default_generator.get_state(), *cuda)]
    kind, keys, *others = np.random.get_state()
    return (*states, random.getstate(), kind, np.asarray(keys).tobytes(), *others)


@contextmanager
def preserved_random_state(accelerator: torch.device | None = None) -> Iterator[None]:
    """Restore the random state of torch, NumPy and Python after this block, and an accelerator's if given."""
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    try:
        with _preserved_on(accelerator):
            yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


@contextmanager
def _preserved_on(accelerator: torch.device | None) -> Iterator[None]:
    if accelerator is not None and accelerator.type == "cuda":
        with torch.random.fork_rng([accelerator.index]):
            yield
    elif accelerator is not None and accelerator.type == "mps":
        state = torch.mps.get_rng_state()
        try:
            yield
        finally:
            torch.mps.set_rng_state(state)
    else:
        yield


def one_thread() -> AbstractContextManager[None]:
    """Use one intra-op thread in a block: other numbers of threads give other bits."""
    threads = torch.get_num_threads()
    return nullcontext() if threads == 1 else _fewer_threads(threads)


@contextmanager
def _fewer_threads(threads: int) -> Iterator[None]:
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
