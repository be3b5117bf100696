"""A device's answer: the change of the shared part, a weight and the measures of training."""

import math
from dataclasses import replace

from partita.data.examples import Examples
from partita.errors import CannotDo
from partita.mean import WeightedMean
from partita.methods.descent import Diverged
from partita.params import Params, change_of, is_finite
from partita.protocol import Measures, Order, Reply


def trained(order: Order, weight: int, measures: Measures) -> Reply:
    """Return the reply of a device that has trained, without the change of the shared part."""
    return Reply(device=order.device, weight=weight, change=None, metrics={"train": measures})


def with_change(reply: Reply, after: Params, before: Params, mean: WeightedMean | None) -> Reply:
    """Return a reply with the change of the shared part; with a mean, add it there instead, in place."""
    if mean is None:
        change = change_of(after, before)
        check_finite("change of the shared part", change)
        return replace(reply, change=change)
    try:
        mean.add_after(reply.device, after, reply.weight)
    except ValueError as error:
        check_finite("change of the shared part", change_of(after, before))
        raise CannotDo(str(error)) from error
    return reply


def training_measures(examples: Examples, losses: list[float]) -> Measures:
    """Return the mean loss over all steps, and that of the first step, before the model has moved.

    Raises:
        Diverged: a loss that a method of one's own returns is not finite.
    """
    for step, loss in enumerate(losses, start=1):
        if not math.isfinite(loss):
            raise Diverged(f"The loss became {loss} in step {step}.")
    if not losses:
        return {"examples": len(examples), "loss": None, "start_loss": None}
    return {"examples": len(examples), "loss": math.fsum(losses) / len(losses), "start_loss": losses[0]}


def check_finite(what: str, params: Params) -> None:
    """Raise `CannotDo` if a value is infinite or no number."""
    for name, tensor in params.items():
        if not is_finite(tensor):
            raise CannotDo(f"The {what} is not finite in `{name}`.")
