"""The peak memory of a visit, counted: the same on every machine.

For a stage in which devices train it is the sum of the model (u, v and the frozen part), u as it was
received, the tensors that the method keeps and sends besides, and the largest of

- a step: the gradients of the parts that move in it, the state of their optimizer, and what backpropagation
  needs for the largest batch, as autograd saves it;
- writing what the device keeps: twice its size, as it is and as a file;
- the change of what is sent;

to which the rows are added that the largest device computes only once and keeps.

The largest stage of a run counts. The paper's formula has the gradients of both parts, also where they move
one after the other.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from partita.data.examples import Batch
from partita.errors import CannotDo
from partita.methods.carried import kept_by, phases_of, sent_by
from partita.methods.declared import LocalFn
from partita.methods.descent import OptimizerFn
from partita.methods.method import Finetuning, Method
from partita.params import change_in_bytes, size_in_bytes
from partita.partition import Part, Personalization
from partita.protocol import Stage
from partita.reuse.visit import MAX_VISIT_BYTES
from partita.reuse.visits import wanted_plans
from partita.tasks.build import split_by_stage
from partita.training.costs import CostModel, same_gradients
from partita.training.plan import Plan


def visit_costs(
    costs: CostModel, personalization: Personalization, plan: Plan, *, reuse: bool = True
) -> dict[str, Any]:
    """Return the peak memory of a run's visits, `visit_bytes`, for a batch of `visit_examples`.

    Both are None where no device trains, or where it cannot be counted: then there is a `visit_reason`.
    """
    pretrains = plan.training(Stage.PRETRAINED) is not None
    splits = split_by_stage(costs.task, personalization, seed=costs.seed, pretrains=pretrains)
    found: list[tuple[int, int]] = [(0, 0)]
    try:
        with same_gradients(costs.model):
            for stage, settings in _trained(plan):
                examples = _largest_batch(costs, settings.batch_size)
                for own, _, _ in splits[stage].kinds(costs.task.devices.ids):
                    kept = _kept_bytes(costs, own, settings) if reuse else 0
                    found.append((_visit_bytes(costs, own, settings, examples) + kept, examples))
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return {"visit_bytes": None, "visit_examples": None, "visit_reason": reason}
    largest, examples = max(found)
    return {"visit_bytes": largest or None, "visit_examples": examples or None}


def _trained(plan: Plan) -> Iterator[tuple[Stage, Method | Finetuning]]:
    """Yield the stages in which devices train, with their settings."""
    for stage in (Stage.PRETRAINED, Stage.PERSONALIZED):
        if training := plan.training(stage):
            yield stage, training.method
    if plan.finetune and plan.finetune.epochs:
        yield Stage.FINETUNED, plan.finetune


def _largest_batch(costs: CostModel, batch_size: int) -> int:
    """Return the number of examples in the largest batch of any device.

    Where the largest device is not known without loading its data, it is the batch size, an upper bound.
    """
    if costs.examples is None:
        raise CannotDo("No device has a training example.")
    largest = costs.task.devices.largest
    return min(batch_size, largest()) if largest else batch_size


def visit_of_one_example(
    costs: CostModel, personalization: Personalization, local: LocalFn
) -> dict[str, Any]:
    """Return the peak memory of a visit with one example, by plain SGD, as `visit_bytes`.

    Where personal parts differ in size it is the largest; it is None where it cannot be counted.
    """
    settings = Method(local=local, batch_size=1)
    try:
        with same_gradients(costs.model):
            kinds = personalization.kinds(costs.task.devices.ids)
            largest = max(_visit_bytes(costs, own, settings, 1) for own, _, _ in kinds)
    except Exception:  # `reason` in the costs says why.
        return {"visit_bytes": None, "visit_examples": None}
    return {"visit_bytes": largest, "visit_examples": 1}


def _visit_bytes(costs: CostModel, own: Personalization, settings: Method | Finetuning, examples: int) -> int:
    """Return the memory of one visit with a batch of some size."""
    model, partition = costs.prepare(own), own.partition
    parts = partition.of(model)
    own_kept, own_sent, written = dict[str, Tensor](), dict[str, Tensor](), dict(parts.personal)
    phases: Sequence[Sequence[Part]] = [("personal",)]
    if isinstance(settings, Method):
        phases = phases_of(settings.local)
        own_kept = kept_by(settings.local, partition, parts)
        own_sent = {
            name: each.tensor for name, each in sent_by(settings.local, partition, parts.shared).items()
        }
        written = {**written, **own_kept} if settings.stateful else {}
    batch = costs.batch(examples)
    steps = [_step_bytes(costs, own, model, batch, moves, settings.optimizer) for moves in phases]
    change = change_in_bytes({**parts.shared, **own_sent}) if isinstance(settings, Method) else 0
    whole = sum(map(size_in_bytes, (parts.shared, parts.personal, parts.frozen)))
    besides = size_in_bytes(parts.shared) + size_in_bytes(own_kept) + 2 * size_in_bytes(own_sent)
    return whole + besides + max(*steps, 2 * size_in_bytes(written), change)


def _step_bytes(
    costs: CostModel,
    own: Personalization,
    model: nn.Module,
    batch: Batch,
    moves: Sequence[Part],
    optimizer: OptimizerFn,
) -> int:
    """Return what a step on some parts needs besides the model."""
    backward = sum(costs.backward_bytes(own, model, batch, moves))
    parts = own.partition.of(model)
    moving = [tensor for part in moves for tensor in getattr(parts, part).values() if tensor.requires_grad]
    return sum(tensor.nbytes for tensor in moving) + state_bytes(optimizer, moving) + backward


def _kept_bytes(costs: CostModel, own: Personalization, settings: Method | Finetuning) -> int:
    """Return the memory of the rows that a visit of the largest device keeps."""
    largest = costs.task.devices.largest
    if largest is None:
        return 0
    plans = [costs.plan(own, moving, settings.batch_size) for moving in wanted_plans(own.partition, settings)]
    kept = largest() * max((plan.bytes_per_example for plan in plans), default=0)
    return kept if kept <= MAX_VISIT_BYTES else 0


def state_bytes(optimizer: OptimizerFn, parameters: list[Tensor]) -> int:
    """Return the bytes of the tensors that an optimizer holds after a step, besides parameters and gradients.

    >>> from functools import partial
    >>> from partita.methods.sgd import SGD
    >>> [state_bytes(kind, [torch.zeros(5)]) for kind in (SGD, partial(SGD, momentum=0.9), torch.optim.Adam)]
    [0, 20, 44]
    """
    if not parameters:
        return 0
    moving = [nn.Parameter(torch.zeros_like(parameter)) for parameter in parameters]
    for parameter in moving:
        parameter.grad = torch.zeros_like(parameter)
    stepping = optimizer([{"params": moving, "lr": 0.0}])
    stepping.step()
    known = {id(tensor) for parameter in moving for tensor in (parameter, parameter.grad)}
    held = {id(tensor): tensor.nbytes for tensor in _tensors_in(vars(stepping))}
    return sum(size for address, size in held.items() if address not in known)


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in nested mappings and sequences."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in (*value.keys(), *value.values()):
            yield from _tensors_in(each)
    elif isinstance(value, list | tuple | set):
        for each in value:
            yield from _tensors_in(each)
