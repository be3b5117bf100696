"""One forward pass for loss and predictions: what a model returned to `loss` is its answer to `predict`.

Nothing is asked of the loss or of `predict`. While both run on a batch, calls of the model itself (not of its
layers) are noted, and a call in `predict` whose inputs have the same bits is answered by the noted output.
This is done only where the answer would be the same: the model has written to none of its tensors and drawn
no random numbers, and nothing on which the output depends has changed since, nor the output itself. On the
first batch `predict` computes as usual, and bits are compared: a model that does not repeat itself is
computed twice from then on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MethodType
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import nn

from partita.partition.tensors import look_inside
from partita.tasks.build import random_state
from partita.tasks.leaves import NotPlain, detached, have_same_bits, leaves_of, versions_of

Compute = Callable[[], Any]


@dataclass(frozen=True)
class _Call:
    """A call of a model, and what its output depends on."""

    inputs: list[Any]
    versions: list[int]
    conditions: tuple[Any, ...]

    def is_repeated_by(self, later: "_Call") -> bool:
        """Return whether a later call has the same output; no input of this one may have changed since."""
        return (
            self.conditions == later.conditions
            and versions_of(self.inputs) == self.versions
            and have_same_bits(self.inputs, later.inputs)
        )


@dataclass(frozen=True)
class _Note:
    """A call of a model in the loss, with its output."""

    call: _Call
    output: Any
    versions: list[int]

    def answers(self, call: _Call) -> bool:
        """Return whether the output, which must be unchanged, is that of another call."""
        return versions_of(leaves_of(self.output)) == self.versions and self.call.is_repeated_by(call)


class OnePass:
    """The calls of a model in the loss and in `predict`, on one batch after the other.

    Args:
        model: the model; nothing here keeps it alive.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model: ReferenceType[nn.Module] = ref(model)
        self._notes: list[_Note] = []
        self._same: list[bool] = []
        self._answer: Callable[[nn.Module, _Call, Compute], Any] | None = None
        self._repeats: bool | None = None
        """Whether the model repeats itself; None before the first batch."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the calls of the model in this block; its `forward` is replaced there."""
        model = self._model()
        is_script = isinstance(model, torch.jit.ScriptModule)
        if model is None or self._repeats is False or is_script or "forward" in vars(model):
            yield
            return
        # A bound method: where a loss copies the model, the copy's is bound to the copy.
        vars(model)["forward"] = MethodType(self._forward(type(model)), model)
        try:
            yield
        finally:
            del vars(model)["forward"]

    @contextmanager
    def loss(self) -> Iterator[None]:
        """Note the calls of the model in this block."""
        self._answer = self._note
        try:
            yield
        finally:
            self._answer = None

    @contextmanager
    def predict(self) -> Iterator[None]:
        """Answer the calls of the model in this block where the loss has made the same ones."""
        self._answer = self._repeat
        try:
            yield
        finally:
            self._answer = None
            self._notes.clear()
        if self._repeats is None:
            self._repeats = bool(self._same) and all(self._same)

    def _forward(self, kind: type[nn.Module]) -> Callable[..., Any]:
        def forward(own: nn.Module, *inputs: Any, **options: Any) -> Any:
            if self._answer is None or own is not self._model():
                return kind.forward(own, *inputs, **options)
            try:
                call = _call_of(own, (inputs, options))
            except (NotPlain, RuntimeError):  # A RuntimeError: tensors without memory, as inside `vmap`.
                return kind.forward(own, *inputs, **options)
            return self._answer(own, call, lambda: kind.forward(own, *inputs, **options))

        return forward

    def _note(self, model: nn.Module, call: _Call, compute: Compute) -> Any:
        before = random_state()
        output = compute()
        if random_state() == before and _conditions(model) == call.conditions:
            with suppress(NotPlain, RuntimeError):
                self._notes.append(_Note(call, detached(output), versions_of(leaves_of(output))))
        return output

    def _repeat(self, model: nn.Module, call: _Call, compute: Compute) -> Any:
        note = next((note for note in self._notes if note.answers(call)), None)
        if note is not None and self._repeats:
            return detached(note.output)
        output = compute()
        if note is not None:
            self._same.append(_have_same_leaves(note.output, output))
        return output


def one_pass_of(model: nn.Module) -> OnePass:
    """Return the calls of a model, which remember whether it repeats itself."""
    return _KNOWN.setdefault(model, OnePass(model))


_KNOWN: WeakKeyDictionary[nn.Module, OnePass] = WeakKeyDictionary()


def _call_of(model: nn.Module, inputs: Any) -> _Call:
    leaves = list(leaves_of(inputs))
    return _Call(leaves, versions_of(leaves), _conditions(model))


def _conditions(model: nn.Module) -> tuple[Any, ...]:
    """Return what the output of a model depends on besides its inputs: its tensors and its modes."""
    casts = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
    return look_inside(model).marks, casts


def _have_same_leaves(noted: Any, output: Any) -> bool:
    try:
        return have_same_bits(list(leaves_of(noted)), list(leaves_of(detached(output))))
    except NotPlain:
        return False
