"""Tensors that a method has besides the model: those that a device keeps and those that are sent.

An update declares them by name and shape, and nothing undeclared is stored on a device or sent:

- `keeps(shared, personal)`: tensors that a device stores between its visits. They may depend on both parts.
- `sends(shared)`: tensors that travel with the shared part, both ways, with the rule by which the server
  aggregates them. They depend on the shared part alone, so nothing personal shapes what leaves a device.

An update with either of them is created with a further argument `carried`, a `Carried`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from torch import Tensor

from partita.methods.declared import LocalFn, OwnExamples, declared, kind_of, takes_examples
from partita.methods.descent import LocalUpdate, Phases, Steps
from partita.params import Aggregation, Params
from partita.partition import Partition, Parts
from partita.partition.selection import Part

Value = TypeVar("Value")


def mean_over_replies(replied: int, devices: int) -> float:
    """Aggregate by the weighted mean over the devices that replied, as for the shared part."""
    return 1.0


def mean_over_all_devices(replied: int, devices: int) -> float:
    """Aggregate by the mean over all devices, where those that did not reply have changed nothing."""
    return replied / devices


@dataclass(frozen=True)
class Sent:
    """A tensor that travels with the shared part."""

    tensor: Tensor
    """Its value before the first round; a floating-point tensor."""
    aggregation: Aggregation = mean_over_replies
    """The rule by which the server applies the devices' changes of it."""


@dataclass(kw_only=True)
class Carried:
    """The tensors that an update has besides the model, by name; it changes both in place."""

    kept: dict[str, Tensor]
    """Stored by the device until its next visit."""
    sent: dict[str, Tensor]
    """Received with the shared part; the change of each goes back with the change of the shared part."""


class Keeps(Protocol):
    """A kind of update that declares tensors for the device to keep."""

    @staticmethod
    def keeps(shared: Params, personal: Params) -> Params:
        """Return the kept tensors before the first visit, for the trained parameters of both parts."""
        ...


class Sends(Protocol):
    """A kind of update that declares tensors to send with the shared part."""

    @staticmethod
    def sends(shared: Params) -> Mapping[str, Sent]:
        """Return the sent tensors of the first round, for the trained shared parameters."""
        ...


_KEEPS, _SENDS = Keeps.keeps.__name__, Sends.sends.__name__


@runtime_checkable
class HasPhases(Protocol):
    """A kind of update that declares which parts move together: fewer gradients are held at a time."""

    phases: Phases


def make_update(
    local: LocalFn, *, personal: Steps, shared: Steps, carried: Carried, examples: OwnExamples | None = None
) -> LocalUpdate:
    """Return the update of one visit; without examples, one that is made to check its settings."""
    given = {"carried": carried} if carries(local) else {}
    if takes_examples(local):
        return local(personal=personal, shared=shared, examples=examples, **given)
    return local(personal=personal, shared=shared, **given)


def carries(local: LocalFn) -> bool:
    """Return whether a kind of update declares tensors besides the model's."""
    kind = kind_of(local)  # Asked in every visit: a check of a protocol would cost as much as a small step.
    return getattr(kind, _KEEPS, None) is not None or getattr(kind, _SENDS, None) is not None


def phases_of(local: LocalFn) -> Phases:
    """Return the parts that move together in each phase of an update: both, unless it declares `phases`."""
    kind = kind_of(local)
    return kind.phases if isinstance(kind, HasPhases) else (("personal", "shared"),)


def kept_by(local: LocalFn, partition: Partition, parts: Parts) -> dict[str, Tensor]:
    """Return the tensors that a device keeps before its first visit, by name.

    Raises:
        ValueError: a name is also a tensor of the model.
    """
    keeps = _keeps(local)
    if keeps is None:
        return {}
    trained = [_trained(partition, "shared", parts.shared), _trained(partition, "personal", parts.personal)]
    return _checked(dict(keeps(*trained)), partition)


def sent_by(local: LocalFn, partition: Partition, shared: Params) -> dict[str, Sent]:
    """Return the tensors that are sent with the shared part in the first round, by name.

    Raises:
        ValueError: a name is also a tensor of the model, a tensor has no floating-point values, or the
            declaration asks for the personal part.
    """
    sends = _sends(local)
    if sends is None:
        return {}
    _check_shared_alone(sends)
    found = _checked(dict(sends(_trained(partition, "shared", shared))), partition)
    for name, sent in found.items():
        if not sent.tensor.is_floating_point():
            raise ValueError(
                f"A method can only send floating-point tensors, got {name!r} of {sent.tensor.dtype}."
            )
    return found


def _keeps(local: LocalFn) -> Callable[[Params, Params], Params] | None:
    return declared(local, _KEEPS)


def _sends(local: LocalFn) -> Callable[[Params], Mapping[str, Sent]] | None:
    return declared(local, _SENDS)


def _check_shared_alone(sends: Callable[..., Mapping[str, Sent]]) -> None:
    """Raise if the declaration of sent tensors takes more than the shared part."""
    arguments = inspect.signature(sends).parameters.values()
    positional = [a.name for a in arguments if a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD)]
    if len(positional) > 1:
        raise ValueError(
            f"`sends` must be a function of the shared part alone, got one of {', '.join(positional)}: "
            "personal parameters never leave their device, so no method can declare to send them."
        )


def _trained(partition: Partition, part: Part, params: Params) -> Params:
    return {name: params[name] for name in partition.trained(part)}


def _checked(found: dict[str, Value], partition: Partition) -> dict[str, Value]:
    for name in found:
        if partition.has(name):
            raise ValueError(f"A method cannot carry {name!r}: the model has a tensor of that name.")
    return found
