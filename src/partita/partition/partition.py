"""Which tensors of a model are shared, personal or frozen.

Every tensor of `state_dict()`, buffers included, has one name (the first, where tied modules give it
several) and belongs to one part. A step on one part leaves the others alone, bit for bit.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, get_args

import torch
from torch import Tensor, nn

from partita.params import Params
from partita.partition.selection import PARTS, REST, Part, Selection, assign, tensors_of
from partita.protocol import DeviceId


@dataclass(frozen=True)
class Parts:
    """The three parts of a state: `Partition.combine` undoes `Partition.split`."""

    shared: Params
    personal: Params
    frozen: Params


@dataclass(frozen=True)
class _Entry:
    part: Part
    shape: torch.Size
    is_buffer: bool
    is_trained: bool
    """A gradient step may move it: a parameter of real numbers that its model has not fixed itself."""


Pull = Literal["zero", "start"]


class Regularization(TypedDict, total=False):
    """What holds the personal part back in training."""

    dropout: float
    l2: float
    l2_to: Pull


class Partition:
    """Which tensors of a model are shared, personal or frozen, by name.

    Args:
        model: a model to read names from; it is left as it is and not kept.
        personal: what belongs to each device.
        shared: what all devices train together.
        frozen: what is neither trained nor sent.
        prepare: turns the task's plain model into the one to be split (adds adapters, say).
        penalty: a term of the prepared model's parameters that training adds to the loss.
        untie: give tied tensors whose names fall into different parts their own copies.
        dropout: with which probability training drops each number that goes into a personal layer.
        l2: how strongly training pulls the personal part: (l2 / 2) ||v||^2 is added to the loss.
        l2_to: where it pulls it, to `zero` or to its `start`.
        begin: from the shared part to what a device begins with that has kept no personal part; without it,
            with the start that all devices are sent.
        by_device: from a device to the partition of its own model, where personal parts differ in size; the
            shared and the frozen part must be the same as here, and devices whose personal parts have the
            same names and shapes have the same model.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> Partition(net, personal="1.*").names("personal")
    ('1.weight', '1.bias')
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        personal: Selection = (),
        shared: Selection = REST,
        frozen: Selection = (),
        prepare: Callable[[nn.Module], nn.Module] | None = None,
        penalty: Callable[[nn.Module], Tensor] | None = None,
        untie: bool = False,
        begin: Callable[[Params], Params] | None = None,
        by_device: Callable[[DeviceId], "Partition"] | None = None,
        **regularization: Unpack[Regularization],
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"`model` must be a module, got {model!r}.")
        self.penalty = penalty
        self.dropout = regularization.get("dropout", 0.0)
        self.l2 = regularization.get("l2", 0.0)
        self.l2_to: Pull = regularization.get("l2_to", "zero")
        _check_regularization(self.dropout, self.l2, self.l2_to)
        self.begin = begin
        self.by_device = by_device
        self._known: dict[tuple[tuple[str, torch.Size], ...], Partition] = {}
        self._seen: set[int] = set()
        self._prepare = prepare
        before = frozenset(tensors_of(model))
        if prepare is not None:
            with torch.random.fork_rng(devices=[]):
                model = prepare(copy.deepcopy(model))
        _check_built(model)
        state = tensors_of(model)
        added = state.keys() - before
        part_of = assign(model, {"personal": personal, "shared": shared, "frozen": frozen}, added)
        ties = _ties(state)
        torn = {name: first for name, first in ties.items() if part_of[name] != part_of[first]}
        if torn and not untie:
            name, first = next(iter(torn.items()))
            raise ValueError(
                f"`{first}` ({part_of[first]}) and `{name}` ({part_of[name]}) are one tensor under two "
                "names: put both in one part, or give each its own copy with `untie=true`."
            )
        # What stays tied inside a part it was torn into is one tensor there, under its first name.
        heads: dict[tuple[str, Part], str] = {}
        self._untied = {name: heads.setdefault((first, part_of[name]), name) for name, first in torn.items()}
        first_of = {**ties, **self._untied}
        self._entries = {
            name: _Entry(
                part_of[name],
                tensor.shape,
                is_buffer=not isinstance(tensor, nn.Parameter),
                is_trained=tensor.requires_grad,
            )
            for name, tensor in state.items()
            if first_of.get(name, name) == name or not _same_memory(tensor, state[first_of[name]])
        }
        self._names: dict[Part, tuple[str, ...]] = {
            part: tuple(name for name, entry in self._entries.items() if entry.part == part) for part in PARTS
        }
        self._check(model)
        if self.dropout and self.names("personal") and not self._personal_layers(model):
            raise ValueError("`dropout` needs a personal layer: a personal tensor of two dimensions or more.")

    def __repr__(self) -> str:
        counts = {part: f"{self.count(part):,}" for part in PARTS}
        counts |= {"personal": "by device"} if self.by_device else {}
        return f"Partition({', '.join(f'{part}={count}' for part, count in counts.items())})"

    def prepare(self, model: nn.Module) -> nn.Module:
        """Return the model that this partition splits; may change `model` in place."""
        if self._prepare is not None:
            model = self._prepare(model)
        for name, head in self._untied.items():
            module, attribute = _own_module(model, name)
            tensor = getattr(module, attribute)
            setattr(module, attribute, copy.deepcopy(tensor) if name == head else tensors_of(model)[head])
        self._check_apart(model)
        if self.dropout:
            for layer in self._personal_layers(model):
                layer.register_forward_pre_hook(partial(_drop, share=self.dropout))
        return model

    def on(self, device: DeviceId) -> "Partition":
        """Return the partition of a device's own model, this one where all devices have the same."""
        if self.by_device is None:
            return self
        own = self.by_device(device)
        if id(own) in self._seen:
            return own
        if not isinstance(own, Partition):
            raise TypeError(f"`by_device` must return a Partition, got {own!r} for device {device!r}.")
        for part in ("shared", "frozen"):
            if own.shapes(part) != self.shapes(part):
                raise ValueError(
                    f"The {part} part of device {device!r} must have the names and shapes of all others': "
                    "only the personal part may differ."
                )
        alike = self._known.setdefault(tuple(own.shapes("personal").items()), own)
        self._seen.add(id(alike))
        return alike

    def kinds(self, devices: Sequence[DeviceId]) -> list[tuple["Partition", DeviceId, int]]:
        """Return the different partitions that devices have, each with the first of them and their number."""
        if self.by_device is None:
            return [(self, devices[0], len(devices))]
        kinds: dict[int, tuple[Partition, DeviceId, int]] = {}
        for device in devices:
            own = self.on(device)
            _, first, count = kinds.get(id(own), (own, device, 0))
            kinds[id(own)] = own, first, count + 1
        return list(kinds.values())

    def names(self, part: Part) -> tuple[str, ...]:
        """Return the names of `part`, in `state_dict` order."""
        return self._names[part]

    def shapes(self, part: Part) -> dict[str, torch.Size]:
        """Return the shapes of `part` by name."""
        return {name: self._entries[name].shape for name in self.names(part)}

    def buffers(self, part: Part) -> frozenset[str]:
        """Return the names of `part` that are buffers: no gradient step moves them."""
        return frozenset(
            name for name, entry in self._entries.items() if entry.part == part and entry.is_buffer
        )

    def trained(self, part: Part) -> list[str]:
        """Return the names of `part` that a gradient step may move."""
        return [name for name in self.names(part) if self._entries[name].is_trained]

    def has(self, name: str) -> bool:
        """Return whether a tensor of the model has this name."""
        return name in self._entries

    def personal_in(self, kept: Params) -> dict[str, Tensor]:
        """Return the personal part in what a device has kept, nothing where it has kept none."""
        return {name: tensor for name, tensor in kept.items() if name in self._entries}

    def count(self, part: Part) -> int:
        """Return how many parameters `part` has; buffers are not parameters."""
        return sum(
            entry.shape.numel()
            for entry in self._entries.values()
            if entry.part == part and not entry.is_buffer
        )

    def split(self, state: Params) -> Parts:
        """Return the parts of `state`, which may also name tied tensors again."""
        missing = [name for name in self._entries if name not in state]
        if missing:
            raise ValueError(f"The model or state lacks {', '.join(f'`{name}`' for name in missing[:5])}.")
        shared, personal, frozen = ({name: state[name] for name in self.names(part)} for part in PARTS)
        return Parts(shared, personal, frozen)

    def combine(self, parts: Parts) -> dict[str, Tensor]:
        """Return the whole state, in `state_dict` order."""
        merged = {**parts.shared, **parts.personal, **parts.frozen}
        return {name: merged[name] for name in self._entries}

    def of(self, model: nn.Module) -> Parts:
        """Return the parts of a prepared model as its own tensors: what is written there is in the model."""
        return self.split(tensors_of(model))

    def let_move(self, model: nn.Module, *parts: Part) -> Parts:
        """Let only `parts` of a prepared model move from now on, in place, and return all its parts.

        The other parts take no gradient, and modules that own one of their buffers are put in eval mode,
        so that a BatchNorm held still keeps its statistics.
        """
        model.train()
        state = tensors_of(model)
        for name, entry in self._entries.items():
            moves = entry.part in parts
            if entry.is_trained:
                state[name].requires_grad_(moves)
            if entry.is_buffer and not moves:
                model.get_submodule(name.rpartition(".")[0]).training = False
        return self.split(state)

    def _personal_layers(self, model: nn.Module) -> list[nn.Module]:
        """Return the modules that own a personal matrix, kernel or other tensor of two dimensions or more."""
        owners = {
            name.rpartition(".")[0]: None
            for name, entry in self._entries.items()
            if entry.part == "personal" and not entry.is_buffer and len(entry.shape) > 1
        }
        attention = tuple(
            f"{name}." for name, m in model.named_modules() if isinstance(m, nn.MultiheadAttention)
        )
        # Attention reads the weights of the layers inside it and never calls them.
        return [model.get_submodule(owner) for owner in owners if not owner.startswith(attention)]

    def _check_apart(self, model: nn.Module) -> None:
        """Raise where a tensor of one part shares memory with a tensor of another."""
        state = self.combine(self.of(model))
        part_of = {name: entry.part for name, entry in self._entries.items()}
        for name, first in _ties(state).items():
            if part_of[name] != part_of[first]:
                raise ValueError(f"`{first}` and `{name}` could not be given their own copies.")

    def _check(self, model: nn.Module) -> None:
        if not self.names("shared"):
            raise ValueError(
                f"The partition leaves nothing of {type(model).__name__} shared: leave something out of the "
                "other parts, or, to give every device a whole model of its own, use the partition `full`."
            )
        for name, tensor in tensors_of(model).items():
            if tensor.is_complex():
                raise ValueError(f"`{name}` is complex; only real tensors can be averaged.")


def _drop(layer: nn.Module, inputs: tuple[Any, ...], *, share: float) -> tuple[Any, ...]:
    """Drop some of what goes into a layer in training; one tensor that goes in twice stays one."""
    dropped = {
        id(value): nn.functional.dropout(value, share, training=layer.training)
        for value in inputs
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    return tuple(dropped.get(id(value), value) for value in inputs)


def _check_regularization(dropout: float, l2: float, l2_to: Pull) -> None:
    if not 0 <= dropout < 1:
        raise ValueError(f"`dropout` must be at least 0 and below 1, got {dropout!r}.")
    if not 0 <= l2 < float("inf"):
        raise ValueError(f"`l2` must be a finite number, 0 or above, got {l2!r}.")
    if l2_to not in get_args(Pull):
        raise ValueError(f"`l2_to` must be 'zero' or 'start', got {l2_to!r}.")


def _check_built(model: nn.Module) -> None:
    for name, tensor in tensors_of(model).items():
        if nn.parameter.is_lazy(tensor):
            raise ValueError(
                f"`{name}` has no shape yet: let the function that builds the model run a batch through it."
            )


def _own_module(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the module that owns a tensor, apart from any other place that the same module has.

    Modules on the way that stand in two places are copied in this one, with all their tensors still shared.
    """
    *path, attribute = name.split(".")
    module = model
    for place in path:
        child = module.get_submodule(place)
        if sum(other is child for _, other in model.named_modules(remove_duplicate=False)) > 1:
            child = copy.copy(child)
            for slot, registry in vars(child).items():
                if slot.startswith("_") and isinstance(registry, dict | set):
                    vars(child)[slot] = registry.copy()
            setattr(module, place, child)
        module = child
    return module, attribute


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.numel() == other.numel()


def _ties(state: Params) -> dict[str, str]:
    """Return the first name of every tensor that shares memory with one named earlier."""
    ties: dict[str, str] = {}
    seen: list[tuple[int, int, str]] = []
    for name, tensor in state.items():
        if not tensor.numel():
            continue
        begin = tensor.data_ptr()
        reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        end = begin + (reach + 1) * tensor.element_size()
        first = next((other for low, high, other in seen if begin < high and low < end), None)
        if first is None:
            seen.append((begin, end, name))
        else:
            ties[name] = first
    return ties
