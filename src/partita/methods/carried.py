"""What a method has besides the model: tensors that a device keeps, and tensors that travel both ways.

Both are declared, by names and shapes. Nothing undeclared is stored on a device or sent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from torch import Tensor

from partita.methods.descent import LocalUpdate, Steps
from partita.params import Params
from partita.partition import Partition


@dataclass(kw_only=True)
class Carried:
    """What an update has besides the model; it changes both in place."""

    kept: dict[str, Tensor]
    """What the device keeps for itself from one visit to the next."""
    sent: dict[str, Tensor]
    """What came with the shared part; its change goes back with the shared part's."""


@runtime_checkable
class Carries(Protocol):
    """A kind of update that declares tensors besides the model's; it is made with `carried`, a `Carried`.

    Names hold no dots but those of the shared part's names: `control/head.weight`.
    """

    def __call__(self, *, personal: Steps, shared: Steps, carried: Carried) -> LocalUpdate:
        """Return what a device does in a visit."""
        ...

    @staticmethod
    def keeps(shared: Params) -> Params:
        """Return what a device begins with, for the shared parameters that train."""
        ...

    @staticmethod
    def sends(shared: Params) -> Params:
        """Return what the server begins with, for the shared parameters that train."""
        ...


LocalFn = Callable[..., LocalUpdate]
"""From `personal` and `shared` steps to what a device does with them; `LocalAlt`, say. One that `Carries`
tensors is given them too, as `carried`."""


def carries(local: LocalFn) -> bool:
    """Return whether a kind of update declares tensors besides the model's."""
    return isinstance(local.func if isinstance(local, partial) else local, Carries)


def make_update(local: LocalFn, *, personal: Steps, shared: Steps, carried: Carried) -> LocalUpdate:
    """Return what a device does in a visit."""
    if carries(local):
        return local(personal=personal, shared=shared, carried=carried)
    return local(personal=personal, shared=shared)


def declared_by(local: LocalFn, partition: Partition, shared: Params) -> Carried:
    """Return all that a kind of update declares, with the values that it begins with.

    Raises:
        ValueError: a declared name is one of the model's.
    """
    kind = local.func if isinstance(local, partial) else local
    if not isinstance(kind, Carries):
        return Carried(kept={}, sent={})
    trained = {name: shared[name] for name in partition.trained("shared")}
    declared = Carried(kept=dict(kind.keeps(trained)), sent=dict(kind.sends(trained)))
    for name in (*declared.kept, *declared.sent):
        if partition.has(name):
            raise ValueError(f"A method cannot carry {name!r}: the model has a tensor of that name.")
    return declared
