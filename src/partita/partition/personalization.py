"""How a model is personalized: its partition, and the values that go with it.

The partition says which tensors are personal. The other values are the regularization of the personal part
(`Regularization`, a penalty), its initial values, and personal parts that differ by device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from torch import Size, Tensor, nn

from partita.params import Params
from partita.partition.padding import fits
from partita.partition.partition import Partition
from partita.protocol import DeviceId

L2Center = Literal["zero", "start"]


@dataclass(frozen=True, kw_only=True)
class Regularization:
    """Regularization of the personal part."""

    dropout: float = 0.0
    """Dropout probability for the inputs of personal layers."""
    l2: float = 0.0
    """Strength of the L2 penalty on the personal part: (l2 / 2) ||v||^2 is added to the loss."""
    l2_to: L2Center = "zero"
    """Center of the L2 penalty: `zero`, or `start`, the initial personal part (pretrained or random)."""

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ValueError(f"`dropout` must be at least 0 and below 1, got {self.dropout!r}.")
        if not 0 <= self.l2 < float("inf"):
            raise ValueError(f"`l2` must be a finite number, 0 or above, got {self.l2!r}.")
        if self.l2_to not in get_args(L2Center):
            raise ValueError(f"`l2_to` must be 'zero' or 'start', got {self.l2_to!r}.")


@dataclass(frozen=True, eq=False)
class Personalization:
    """A partition with the values that go with it; `run` and `pipeline` take either.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> head = Partition(net, personal="1.*")
    >>> Personalization(head, regularization=Regularization(dropout=0.1)).on("any device").partition is head
    True
    """

    partition: Partition
    """The shared, personal and frozen tensors."""
    regularization: Regularization = field(default_factory=Regularization, kw_only=True)
    penalty: Callable[[nn.Module], Tensor] | None = field(default=None, kw_only=True)
    """Term of the prepared model's parameters that training adds to the loss."""
    start: Callable[[Params], Params] | None = field(default=None, kw_only=True)
    """From the shared part to the personal part of a device that has kept none; without it, every device
    starts from the same personal part."""
    by_device: Callable[[DeviceId], "Personalization"] | None = field(default=None, kw_only=True)
    """From a device to its own personalization, where models differ in size. The frozen part must be the same
    as here. So must the shared part, unless the method fills what a device lacks: then its tensors may be
    smaller in one dimension. Devices with the same names and shapes have the same model."""
    _by_shapes: dict[tuple[tuple[str, Size], ...], "Personalization"] = field(
        default_factory=dict, init=False, repr=False
    )
    _checked: set[int] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.partition, Partition):
            raise TypeError(f"`partition` must be a Partition, got {self.partition!r}.")
        personal, layers = self.partition.names("personal"), self.partition.personal_layers
        if self.regularization.dropout and personal and not layers:
            raise ValueError("`dropout` needs a personal layer: a personal tensor of two dimensions or more.")

    def prepare(self, model: nn.Module) -> nn.Module:
        """Return the model that the partition splits, with dropout on personal layers; may change `model`."""
        model = self.partition.prepare(model)
        if self.regularization.dropout:
            drop = partial(_drop, probability=self.regularization.dropout)
            for layer in self.partition.personal_layers:
                model.get_submodule(layer).register_forward_pre_hook(drop)
        return model

    def on(self, device: DeviceId) -> "Personalization":
        """Return the personalization of a device's own model, this one where all devices have the same."""
        if self.by_device is None:
            return self
        own = self.by_device(device)
        if id(own) in self._checked:
            return own
        if not isinstance(own, Personalization):
            raise TypeError(f"`by_device` must return a Personalization, got {own!r} for device {device!r}.")
        shapes = {part: own.partition.shapes(part) for part in ("shared", "personal", "frozen")}
        if shapes["frozen"] != self.partition.shapes("frozen"):
            raise ValueError(_differs("frozen", device, "the personal part may differ"))
        if not fits(shapes["shared"], self.partition.shapes("shared")):
            may = "the personal part may differ, and shared tensors may be smaller in one dimension"
            raise ValueError(_differs("shared", device, may))
        kind = (*shapes["personal"].items(), *shapes["shared"].items())
        first = self._by_shapes.setdefault(kind, own)
        self._checked.add(id(first))
        return first

    def has_whole_shared(self, own: "Personalization") -> bool:
        """Return whether a device's own personalization has every tensor of the shared part in full."""
        return own is self or own.partition.shapes("shared") == self.partition.shapes("shared")

    def kinds(self, devices: Sequence[DeviceId]) -> list[tuple["Personalization", DeviceId, int]]:
        """Return the distinct personalizations of devices, each with its first device and their number."""
        if self.by_device is None:
            return [(self, devices[0], len(devices))]
        kinds: dict[int, tuple[Personalization, DeviceId, int]] = {}
        for device in devices:
            own = self.on(device)
            _, first, count = kinds.get(id(own), (own, device, 0))
            kinds[id(own)] = own, first, count + 1
        return list(kinds.values())


def _differs(part: str, device: DeviceId, may: str) -> str:
    return (
        f"The {part} part of device {device!r} must have the same names and shapes as on all other devices: "
        f"only {may}."
    )


def personalization_of(partition: Partition | Personalization) -> Personalization:
    """Return a personalization as it is, and a bare partition with nothing beside it."""
    if isinstance(partition, Personalization):
        return partition
    return Personalization(partition)


def _drop(layer: nn.Module, inputs: tuple[Any, ...], *, probability: float) -> tuple[Any, ...]:
    """Apply dropout to a layer's inputs in training; one tensor that enters twice stays one tensor."""
    dropped = {
        id(value): nn.functional.dropout(value, probability, training=layer.training)
        for value in inputs
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    return tuple(dropped.get(id(value), value) for value in inputs)
