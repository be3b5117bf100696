"""The tensors of a model by name, remembered for as long as its modules hold the same ones.

A walk over all modules costs as much as a step of a small model, and a visit needs the names several times.
So the tensors found by the last walk are cached, and compared each time with those that the modules hold now:
a model may replace the tensor of a buffer, or a whole layer.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from torch import Tensor, nn

Slots = dict[str, Any]
"""A module's own dict of parameters or of buffers, by their short names."""
Child = Callable[[], nn.Module | None]
"""Returns a child of a module, as long as it is alive."""


@dataclass(frozen=True)
class Marks:
    """Marks of a model's state: while they are equal, no mode of a module and no tensor has changed."""

    modes: list[bool]
    """Whether each module is in train mode."""
    versions: list[tuple[int, int]]
    """Each tensor by its identity, with its version, which grows where it is changed in place."""
    tensors: tuple[Tensor, ...] = field(compare=False)
    """The tensors, kept alive so that no other tensor gets the identity of one."""


@dataclass(frozen=True)
class Inside:
    """The tensors and modules inside a model."""

    state: Mapping[str, Tensor]
    """The model's tensors under all their names, in `state_dict` order."""
    scratch: Mapping[str, Tensor]
    """The buffers that are not in the model's state."""
    parameters: tuple[nn.Parameter, ...]
    references: tuple[ReferenceType[nn.Module], ...]
    """The model and all modules inside it; references, so that nothing here keeps a model alive."""
    slots: tuple[tuple[Slots, Slots, int], ...]
    """The parameters and buffers of each module, and how many of them and of its children there are."""
    tensors: tuple[tuple[Slots, str, Tensor | None], ...]
    children: tuple[tuple[ReferenceType[nn.Module], str, Child], ...]
    is_plain: bool
    """Whether the state is just what the modules hold."""
    has_own_mode: bool
    """Whether a module has its own way of being put in train or eval mode."""

    @property
    def modules(self) -> list[nn.Module]:
        """The model, which comes first, and all modules inside it."""
        return [module for reference in self.references if (module := reference()) is not None]

    @property
    def marks(self) -> Marks:
        """The marks that reveal a change of the model."""
        tensors = (*self.state.values(), *self.scratch.values())
        versions = [(id(tensor), tensor._version) for tensor in tensors]  # noqa: SLF001
        return Marks([module.training for module in self.modules], versions, tensors)

    def set_training(self, *, training: bool) -> None:
        """Put the model in train mode or in eval mode, in place, as `model.train(training)` does."""
        modules = self.modules
        if self.has_own_mode:
            modules[0].train(training)
            return
        for module in modules:
            if module.training is not training:
                module.training = training

    def stop_gradients(self) -> None:
        """Let no parameter of the model take a gradient, in place."""
        for parameter in self.parameters:
            if parameter.requires_grad:
                parameter.requires_grad_(False)

    def is_current(self) -> bool:
        """Return whether the modules still hold these very tensors."""
        for reference, (parameters, buffers, size) in zip(self.references, self.slots, strict=True):
            module = reference()
            if module is None or module._parameters is not parameters or module._buffers is not buffers:  # noqa: SLF001
                return False
            if len(parameters) + len(buffers) + len(module._modules) != size:  # noqa: SLF001
                return False
        for slots, name, tensor in self.tensors:
            if slots.get(name) is not tensor:
                return False
        for parent, name, child in self.children:
            module = parent()
            if module is None or module._modules.get(name) is not child():  # noqa: SLF001
                return False
        return True


_KNOWN: WeakKeyDictionary[nn.Module, Inside] = WeakKeyDictionary()


def look_inside(model: nn.Module) -> Inside:
    """Return the tensors and modules inside a model."""
    inside = _KNOWN.get(model)
    if inside is None or not inside.is_current():
        inside = _walk(model)
        if inside.is_plain:
            _KNOWN[model] = inside
    return inside


def tensors_of(model: nn.Module) -> Mapping[str, Tensor]:
    """Return the model's tensors under all their names, in `state_dict` order."""
    return look_inside(model).state


def scratch_of(model: nn.Module) -> Mapping[str, Tensor]:
    """Return the buffers that are not in the model's state."""
    return look_inside(model).scratch


def _walk(model: nn.Module) -> Inside:
    state = {k: v for k, v in model.state_dict(keep_vars=True).items() if isinstance(v, Tensor)}
    modules = list(model.modules())
    return Inside(
        state=state,
        scratch={name: buffer for name, buffer in model.named_buffers() if name not in state},
        parameters=tuple(model.parameters()),
        references=tuple(map(ref, modules)),
        slots=tuple((*_slots(m), _size(m)) for m in modules),
        tensors=tuple((slots, name, slots[name]) for m in modules for slots in _slots(m) for name in slots),
        children=tuple((ref(m), name, child) for m in modules for name, child in _children(m)),
        is_plain=_is_plain(model, state),
        has_own_mode=any(map(_has_own_mode, modules)),
    )


def _is_plain(model: nn.Module, state: Mapping[str, Tensor]) -> bool:
    held = [(f"{prefix}{'.' if prefix else ''}{name}", t) for prefix, name, t in _persistent(model)]
    return [(name, id(tensor)) for name, tensor in held] == [
        (name, id(t)) for name, t in state.items()
    ] and all(type(slots) is dict for module in model.modules() for slots in _slots(module))


def _persistent(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    for prefix, module in model.named_modules(remove_duplicate=False):
        for slots in _slots(module):
            for name, tensor in slots.items():
                if tensor is not None and name not in module._non_persistent_buffers_set:  # noqa: SLF001
                    yield prefix, name, tensor


def _has_own_mode(module: nn.Module) -> bool:
    kind = type(module)
    return kind.train is not nn.Module.train or kind.eval is not nn.Module.eval or "train" in vars(module)


def _slots(module: nn.Module) -> tuple[Slots, Slots]:
    return module._parameters, module._buffers  # noqa: SLF001


def _children(module: nn.Module) -> Iterator[tuple[str, Child]]:
    for name, child in module._modules.items():  # noqa: SLF001
        yield name, _no_module if child is None else ref(child)


def _no_module() -> None:
    """Return None, for a child that is None."""


def _size(module: nn.Module) -> int:
    return len(module._parameters) + len(module._buffers) + len(module._modules)  # noqa: SLF001
