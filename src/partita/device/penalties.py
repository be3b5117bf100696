"""The loss of a visit: the task's, plus the penalties of the personalization and of the method."""

from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor, nn

from partita.params import Params, pull
from partita.partition import Part, Partition, Personalization
from partita.partition.tensors import tensors_of
from partita.tasks.task import LossFn

Penalty = Callable[[nn.Module], Tensor]


def with_penalties(
    loss: LossFn,
    own: Personalization,
    *,
    start: Params,
    sent: Params,
    proximal: float,
    to: Callable[[Params], Params],
) -> LossFn:
    """Return a loss plus the penalties of a visit.

    Args:
        loss: the task's loss.
        own: the device's personalization, with its penalty and its regularization.
        start: the initial personal part, to which an L2 penalty may pull.
        sent: u as the server has sent it, to which the proximal term pulls.
        proximal: strength of the proximal term; 0: none.
        to: moves tensors to where the model is.
    """
    penalties = list(_penalties(own, start, sent, proximal, to))
    if not penalties:
        return loss
    return lambda model, batch: sum((penalty(model) for penalty in penalties), start=loss(model, batch))


def _penalties(
    own: Personalization, start: Params, sent: Params, proximal: float, to: Callable[[Params], Params]
) -> Iterator[Penalty]:
    if own.penalty is not None:
        yield own.penalty
    regularization, partition = own.regularization, own.partition
    if regularization.l2 and partition.trained("personal"):
        center, strength = to(start) if regularization.l2_to == "start" else None, regularization.l2
        yield partial(_pull, partition=partition, part="personal", toward=center, strength=strength)
    if proximal and partition.trained("shared"):
        yield partial(_pull, partition=partition, part="shared", toward=to(sent), strength=proximal)


def _pull(
    model: nn.Module, *, partition: Partition, part: Part, toward: Params | None, strength: float
) -> Tensor:
    state = tensors_of(model)
    return pull({name: state[name] for name in partition.trained(part)}, toward, strength=strength)
