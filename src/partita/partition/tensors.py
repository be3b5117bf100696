"""The tensors of a model by name, remembered for as long as its modules hold the same ones.

A walk over all modules costs as much as a step of a small model, and a visit needs the names several times.
So what the last walk over a model has found is kept, and compared each time with what its modules hold now: a
model may replace the tensor of a buffer, or a whole layer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from torch import Tensor, nn

Slots = dict[str, Any]
"""A module's own dict of parameters or of buffers, by their short names."""


@dataclass(frozen=True)
class _Found:
    """The tensors that a walk over a model has found, and what they are known by."""

    state: Mapping[str, Tensor]
    scratch: Mapping[str, Tensor]
    parameters: tuple[nn.Parameter, ...]
    modules: tuple[ReferenceType[nn.Module], ...]
    slots: tuple[tuple[Slots, Slots, int], ...]
    """The parameters and buffers of each module, and how many of them and of its children there are."""
    tensors: tuple[tuple[Slots, str, Tensor | None], ...]
    children: tuple[tuple[ReferenceType[nn.Module], str, ReferenceType[nn.Module]], ...]
    is_plain: bool
    """Whether the state is just what the modules hold."""
    has_own_mode: bool
    """Whether a module has its own way of being put in train or eval mode."""

    def holds(self) -> bool:
        """Return whether the modules still hold these very tensors."""
        for own, (parameters, buffers, size) in zip(self.modules, self.slots, strict=True):
            module = own()
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


@dataclass(frozen=True)
class Marks:
    """As long as these are the same, no module has another mode and no tensor another value."""

    modes: list[bool]
    """Whether each module is in train mode."""
    versions: list[tuple[int, int]]
    """Each tensor by its identity, with its version, which grows where it is changed in place."""
    tensors: tuple[Tensor, ...] = field(compare=False)
    """The tensors: as long as they are alive, no other has the identity of one."""


_FOUND: WeakKeyDictionary[nn.Module, _Found] = WeakKeyDictionary()


def tensors_of(model: nn.Module) -> Mapping[str, Tensor]:
    """Return the model's tensors under all their names, in `state_dict` order."""
    return _find(model).state


def scratch_of(model: nn.Module) -> Mapping[str, Tensor]:
    """Return the buffers that are not in the model's state."""
    return _find(model).scratch


def marks_of(model: nn.Module) -> Marks:
    """Return the marks by which a change of the model is seen."""
    found = _find(model)
    modes = [module.training for own in found.modules if (module := own()) is not None]
    tensors = (*found.state.values(), *found.scratch.values())
    return Marks(modes, [(id(tensor), tensor._version) for tensor in tensors], tensors)  # noqa: SLF001


def modules_of(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the model and all modules inside it."""
    return (module for own in _find(model).modules if (module := own()) is not None)


def set_training(model: nn.Module, *, training: bool) -> None:
    """Put a model in train mode or in eval mode, in place, as `model.train(training)` does."""
    if _find(model).has_own_mode:
        model.train(training)
        return
    for module in modules_of(model):
        if module.training is not training:
            module.training = training


def stop_gradients(model: nn.Module) -> None:
    """Let no parameter of a model take a gradient, in place."""
    for parameter in _find(model).parameters:
        if parameter.requires_grad:
            parameter.requires_grad_(False)


def _find(model: nn.Module) -> _Found:
    found = _FOUND.get(model)
    if found is None or not found.holds():
        found = _walk(model)
        if found.is_plain:
            _FOUND[model] = found
    return found


def _walk(model: nn.Module) -> _Found:
    state = {k: v for k, v in model.state_dict(keep_vars=True).items() if isinstance(v, Tensor)}
    modules = list(model.modules())
    return _Found(
        state=state,
        scratch={name: buffer for name, buffer in model.named_buffers() if name not in state},
        parameters=tuple(model.parameters()),
        modules=tuple(map(ref, modules)),
        slots=tuple((*_slots(m), _size(m)) for m in modules),
        tensors=tuple((slots, name, slots[name]) for m in modules for slots in _slots(m) for name in slots),
        children=tuple((ref(m), name, ref(child)) for m in modules for name, child in _children(m)),
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


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((name, child) for name, child in module._modules.items() if child is not None)  # noqa: SLF001


def _size(module: nn.Module) -> int:
    return len(module._parameters) + len(module._buffers) + len(module._modules)  # noqa: SLF001
