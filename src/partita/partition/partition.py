"""A partition: the shared, personal and frozen tensors of a model.

Every tensor of `state_dict()`, buffers included, has one name (the first, where tied modules give it
several) and belongs to one part. A step on one part leaves the others alone, bit for bit. Parameters that
the model or `prepare` has fixed, with `requires_grad=False`, are frozen unless a selection names them.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from partita.params import Params
from partita.partition.common import is_common
from partita.partition.selection import (
    PARTS,
    REST,
    Part,
    Selection,
    assign,
    frozen_before,
    is_fixed,
    is_rest,
    select,
)
from partita.partition.tensors import look_inside, tensors_of
from partita.partition.ties import find_ties, is_same_memory, own_common, untie


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
    takes_gradient: bool
    """Whether it is a parameter with real values."""
    is_trained: bool
    """Whether gradient steps may change it: a parameter with real values that is not frozen."""


class Partition:
    """The shared, personal and frozen tensors of a model, by name.

    Args:
        model: a model to read names from; it is neither changed nor kept.
        personal: tensors that belong to each device.
        shared: tensors that all devices train together. One of the three selections may be "rest": all
            tensors that no selection names, without the parameters that take no gradient, which are frozen.
        frozen: tensors that are neither trained nor sent.
        prepare: turns the task's plain model into the one to split; for example, adds adapters.
        untie: give tied tensors whose names fall into different parts their own copies.

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
        untie: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"`model` must be a module, got {model!r}.")
        self._prepare = prepare
        self._parts: WeakKeyDictionary[nn.Module, tuple[Params, Parts]] = WeakKeyDictionary()
        if prepare is not None:
            model = copy.deepcopy(model)
        before = tensors_of(model)
        fixed = {name for name, tensor in before.items() if is_fixed(tensor)}
        if prepare is not None:
            with torch.random.fork_rng(devices=[]):
                model = prepare(model)
        _check_built(model)
        state = tensors_of(model)
        claims: dict[Part, Selection] = {"personal": personal, "shared": shared, "frozen": frozen}
        selected = select(model, claims, state.keys() - before.keys())
        part_of = assign(state, claims, selected)
        ties = find_ties(state)
        torn = {name: first for name, first in ties.items() if part_of[name] != part_of[first]}
        if torn and not untie:
            name, first = next(iter(torn.items()))
            raise ValueError(
                f"`{first}` ({part_of[first]}) and `{name}` ({part_of[name]}) are one tensor under two "
                "names: put both in one part, or give each its own copy with `untie=true`."
            )
        # Names that stay tied inside one part are one tensor there, under the first of them.
        heads: dict[tuple[str, Part], str] = {}
        self._untied = {name: heads.setdefault((first, part_of[name]), name) for name, first in torn.items()}
        first_of = {**ties, **self._untied}
        self._own = {name for name, t in state.items() if part_of[name] != "frozen" and is_common(t)}
        self._entries = {
            name: _Entry(
                part_of[name],
                tensor.shape,
                is_buffer=not isinstance(tensor, nn.Parameter),
                takes_gradient=_takes_gradient(tensor),
                is_trained=_takes_gradient(tensor) and part_of[name] != "frozen",
            )
            for name, tensor in state.items()
            if first_of.get(name, name) == name or not is_same_memory(tensor, state[first_of[name]])
        }
        self._names: dict[Part, tuple[str, ...]] = {
            part: tuple(name for name, entry in self._entries.items() if entry.part == part) for part in PARTS
        }
        self._moving = {
            part: [name for name in names if self._entries[name].takes_gradient]
            for part, names in self._names.items()
        }
        self._buffers = {name: part_of[name] for name, t in state.items() if not isinstance(t, nn.Parameter)}
        self._check(model)
        self.frozen_before = frozen_before(
            before,
            fixed,
            state,
            frozen=frozenset(self._names["frozen"]),
            selected=state.keys() if is_rest(frozen) else selected.keys(),
        )
        """The frozen part as seen from the model before `prepare`."""
        self.personal_layers = self._find_personal_layers(model)
        """Names of the modules that own a personal tensor of two dimensions or more, a matrix or a kernel."""

    @property
    def is_plain(self) -> bool:
        """Whether the names of the parts say everything: the model is split as the task builds it."""
        return self._prepare is None and not self._untied

    def __repr__(self) -> str:
        counts = {part: f"{self.count(part):,}" for part in PARTS}
        return f"Partition({', '.join(f'{part}={count}' for part, count in counts.items())})"

    @property
    def untied(self) -> dict[str, int]:
        """The tensors that are given their own copies, with the number of parameters of each copy."""
        names = dict.fromkeys(self._untied.values())
        return {name: self._entries[name].shape.numel() for name in names}

    @property
    def preparation(self) -> tuple[Callable[[nn.Module], nn.Module] | None, Mapping[str, str]]:
        """The steps of `prepare`: the function that was given, and the tensors that are untied."""
        return self._prepare, self._untied

    def prepare(self, model: nn.Module) -> nn.Module:
        """Return the model that this partition splits; may change `model` in place."""
        if self._prepare is not None:
            model = self._prepare(model)
        untie(model, self._untied)
        own_common(model, self._own)
        self._check_apart(model)
        return model

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
        """Return the parts of a prepared model as views: writing to them changes the model."""
        return self._parts_of(model, tensors_of(model))

    def _parts_of(self, model: nn.Module, state: Params) -> Parts:
        """Return the parts of a model's state, the same ones for as long as it has the same tensors."""
        known = self._parts.get(model)
        if known is None or known[0] is not state:
            known = self._parts[model] = state, self.split(state)
        return known[1]

    def let_move(self, model: nn.Module, *parts: Part) -> Parts:
        """Let only `parts` of a prepared model move from now on, in place, and return all its parts.

        The other parts take no gradient, and modules that own one of their buffers are put in eval mode,
        so that a BatchNorm held still keeps its statistics.
        """
        inside = look_inside(model)
        inside.set_training(training=True)
        own = self._parts_of(model, inside.state)
        for part, names in self._moving.items():
            moves, tensors = part in parts, getattr(own, part)
            for name in names:
                if tensors[name].requires_grad is not moves:
                    tensors[name].requires_grad_(moves)
        for name, part in self._buffers.items():
            if part not in parts:
                model.get_submodule(name.rpartition(".")[0]).training = False
        return own

    def _find_personal_layers(self, model: nn.Module) -> tuple[str, ...]:
        owners = {
            name.rpartition(".")[0]: None
            for name, entry in self._entries.items()
            if entry.part == "personal" and not entry.is_buffer and len(entry.shape) > 1
        }
        attention = tuple(
            f"{name}." for name, m in model.named_modules() if isinstance(m, nn.MultiheadAttention)
        )
        # Attention reads the weights of the layers inside it and never calls them.
        return tuple(owner for owner in owners if not owner.startswith(attention))

    def _check_apart(self, model: nn.Module) -> None:
        """Raise where a tensor of one part shares memory with a tensor of another."""
        state = self.combine(self.of(model))
        part_of = {name: entry.part for name, entry in self._entries.items()}
        for name, first in find_ties(state).items():
            if part_of[name] != part_of[first]:
                raise ValueError(f"`{first}` and `{name}` could not be given their own copies.")

    def _check(self, model: nn.Module) -> None:
        if not self.names("shared") and not self.names("frozen"):
            raise ValueError(
                f"The partition leaves no tensor of {type(model).__name__} shared: select fewer personal "
                "tensors, or use the partition `full` to give every device its own model."
            )
        for name, tensor in tensors_of(model).items():
            if tensor.is_complex():
                raise ValueError(f"`{name}` is complex; only real tensors can be averaged.")


def uses_batch_statistics(model: nn.Module) -> bool:
    """Return whether a BatchNorm of a model, as its modules are set now, normalizes by the batch itself.

    Such a model cannot train on a batch of one example, which has no variance.
    """
    return any(
        module.training or module.running_mean is None
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)  # noqa: SLF001
    )


def _takes_gradient(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.is_floating_point()


def _check_built(model: nn.Module) -> None:
    for name, tensor in tensors_of(model).items():
        if nn.parameter.is_lazy(tensor):
            raise ValueError(
                f"`{name}` has no shape yet: let the function that builds the model run a batch through it."
            )
