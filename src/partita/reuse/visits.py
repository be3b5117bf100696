"""Reuse, in all visits of a process, of the layers that precede the first trained parameter.

Which modules are reused is settled once for a stage. The output of the layers before the first parameter that
is not frozen is kept for later visits of the device too.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from torch import nn

from partita.data.examples import Examples
from partita.methods.method import Finetuning, Method
from partita.partition import Partition, Personalization
from partita.protocol import DeviceId
from partita.reuse.kept_rows import KeptRows
from partita.reuse.plan import MOVING, NOTHING, Moving, Plan
from partita.reuse.settling import Settling
from partita.reuse.values import MIN_ROWS
from partita.reuse.visit import Plainly, Reusing, Visited
from partita.tasks.task import Task

logger = logging.getLogger(__name__)

TRIED_DEVICES = 20
"""Devices looked at for one with enough examples for trial runs."""
_PLAINLY = nullcontext(Plainly())


class Reuses:
    """Settles and carries out the reuse of computed values for all visits of a process.

    Args:
        task: data, model, loss and metrics.
        examples: returns the training examples of a device.
        seed: the run's seed.
        is_off: whether everything is computed.
        folder: the folder for rows that are kept between visits; without it they are kept in memory alone.
    """

    def __init__(
        self,
        task: Task,
        examples: Callable[[DeviceId], Examples],
        *,
        seed: int,
        is_off: bool = False,
        folder: Path | None = None,
    ) -> None:
        self.task = task
        self.seed = seed
        self.is_off = is_off
        self._examples = examples
        self._plans: dict[tuple[int, int], dict[Moving, Plan]] = {}
        self._settled: set[tuple[int, int]] = set()
        self._rows = KeptRows(folder)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Compute everything in this block."""
        before, self.is_off = self.is_off, True
        try:
            yield
        finally:
            self.is_off = before

    def is_settled(self, own: Personalization, settings: Method | Finetuning) -> bool:
        """Return whether the modules to reuse in visits of a model are settled; once True, it stays True."""
        if (id(own), id(settings)) in self._settled:
            return True
        plans = self._plans.get((id(own), settings.batch_size), {})
        if plans.keys() >= set(wanted_plans(own.partition, settings)):
            self._settled.add((id(own), id(settings)))
            return True
        return False

    def settle(self, model: nn.Module, own: Personalization, settings: Method | Finetuning) -> None:
        """Settle it, in place, on a model that has its first values."""
        partition = own.partition
        examples = probed_examples(self.task.devices.ids, self._examples)
        plans = self._plans.setdefault((id(own), settings.batch_size), {})
        wanted = wanted_plans(partition, settings)
        if examples is None:
            plans.update(dict.fromkeys(wanted, NOTHING))
        else:
            settling = Settling(
                model, partition, self.task.loss, examples, settings.batch_size, seed=self.seed
            )
            plans.update({moving: settling.plan(moving) for moving in wanted if moving not in plans})
        for moving, plan in plans.items():
            what = f"reuse what precedes {plan.begins}" if plan.modules else f"reuse nothing: {plan.reason}"
            logger.debug("While %s moves, visits %s.", " and ".join(sorted(moving)), what)

    def visit(self, visited: Visited) -> AbstractContextManager[Reusing | Plainly]:
        """Return what wraps the batches and the loss of a visit."""
        plans = self._plans.get((id(visited.personalization), visited.batch_size))
        if (
            not plans
            or not any(plan.modules for plan in plans.values())
            or self.is_off
            or min(visited.size, visited.batch_size) < MIN_ROWS
        ):
            return _PLAINLY
        return self._reusing(visited, plans)

    @contextmanager
    def _reusing(self, visited: Visited, plans: Mapping[Moving, Plan]) -> Iterator[Reusing]:
        accelerator = next(visited.model.parameters()).device
        kept = self._rows.take(visited.frozen, visited.device, visited.size, accelerator)
        reusing = Reusing(visited, plans, kept)
        try:
            yield reusing
            reusing.check()
        finally:
            reusing.end()
        self._rows.put(visited.frozen, visited.device, kept)


def probed_examples(
    devices: Sequence[DeviceId], examples_of: Callable[[DeviceId], Examples]
) -> Examples | None:
    """Return the training examples of the first device that has enough for trial runs, None if none has."""
    for device in devices[:TRIED_DEVICES]:
        with suppress(Exception):  # A visit of this device will raise it again.
            examples = examples_of(device)
            if len(examples) > MIN_ROWS:
                return examples
    return None


def wanted_plans(partition: Partition, settings: Method | Finetuning) -> list[Moving]:
    """Return the sets of moving parts for which something may be computed twice otherwise."""
    if settings.batch_size < MIN_ROWS:
        return []
    if isinstance(settings, Finetuning):
        steps = {"personal": settings.epochs}
    else:
        steps = {
            "personal": settings.personal_steps or settings.personal_epochs,
            "shared": settings.shared_steps or settings.shared_epochs,
        }
    least = 1 if partition.names("frozen") else 2
    return [
        moving
        for moving in MOVING
        if moving <= steps.keys()
        and any(partition.trained(part) for part in moving)
        and max(steps[part] for part in moving) >= least
    ]
