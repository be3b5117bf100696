"""The computation of the loss of one batch, of which only the rows that are not kept are computed.

While the loss is computed, modules in which nothing moves return a lazy tensor instead of running. Operations
that treat every row by itself give further ones; any other operation, and any with a parameter that moves,
needs values. Then the rows that are kept are taken, and the others are computed by the very modules and
operations that were put off, so that they have the bits that they would have had.
"""

import hashlib
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import getitem
from typing import Any

import torch
from torch import Tensor, nn

from partita.device.kept import Kept
from partita.device.lazy import Arguments, Autocast, Deviated, Lazy, Node, NotPutOff, realized
from partita.device.rowwise import IN_PLACE, RULES, is_view, sizes_of, tensors_in

MIN_ROWS = 4
"""Smaller batches are neither kept nor taken from what is kept: torch computes them with other bits."""


@dataclass(frozen=True)
class _Slot:
    """The place of a tensor in the arguments of a call."""

    number: int


class _Count:
    """The place of the number of rows in the arguments of a call."""

    def __repr__(self) -> str:
        return "rows"


_COUNT = _Count()


@dataclass(eq=False)
class Call:
    """The computation of the loss of one batch."""

    positions: Tensor
    kept: Kept | None
    """What is kept for the device."""
    shapes: dict[str, Any]
    """The shapes of computed values by name, without the number of rows; grows in place."""
    refused: set[str]
    """Places at which other values entered than before; grows in place."""
    kind: str = "cpu"
    """The kind of accelerator."""
    is_suspended: bool = False
    """Whether modules run at once, for the moment."""
    _calls: Counter[str] = field(default_factory=Counter)
    _handed_out: list[weakref.ref["Lazy"]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.positions)

    def close(self) -> None:
        """Compute, in place, what someone still holds a lazy tensor of, before parameters move."""
        for reference in self._handed_out:
            if (handle := reference()) is not None:
                self.real(handle)
        self.kept = None

    def module(self, label: str, run: Callable[..., Any], args: Arguments, *, is_constant: bool) -> Any:
        """Put a module's call off and return lazy tensors in place of its result.

        Raises:
            NotPutOff: its arguments do not allow it.
        """
        place = self._place(label)
        if not any(isinstance(tensor, Lazy) or self._has_rows(tensor) for tensor in tensors_in(args)):
            raise NotPutOff
        return self._handles(self._node(label, run, args, place, self._has_rows, is_constant=is_constant))

    def operation(self, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Put an operation off where each row is treated by itself; otherwise make it."""
        try:
            if func in IN_PLACE or (func in RULES and options.pop("inplace", False)):
                return self._change(IN_PLACE.get(func, func), args, options)
            return self._put_off(func, args, options)
        except NotPutOff:
            return self._make(func, args, options)

    def _change(self, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Change a lazy tensor in place."""
        handle = args[0]
        if not isinstance(handle, Lazy) or handle.is_shared:
            raise Deviated("a tensor is changed in place that shares memory with others")
        try:
            handle.node = self._put_off(func, args, options).node
        except NotPutOff:
            raise Deviated("a tensor is changed in place") from None
        return handle

    def _place(self, name: str) -> str:
        """Return a name for a call among the calls of one kind in the computation of a loss."""
        self._calls[name] += 1
        return f"{name}#{self._calls[name]}"

    def _put_off(self, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        if func is nn.functional.dropout and not (options.get("training", True) and options.get("p", 0.5)):
            args[0].is_shared = True
            return args[0]
        name, rule = RULES.get(func, ("", None))
        tensors = tensors_in((args, options))
        if (
            rule is None
            or any(tensor.requires_grad for tensor in tensors)
            or not rule(self.rows, args, options)
        ):
            raise NotPutOff
        if name in ("view", "reshape") and sizes_of(args)[0] == self.rows:
            args = (args[0], (_COUNT, *sizes_of(args)[1:]))
        most = max(tensor.dim() for tensor in tensors)
        place = self._place(_digest(name, *(t.node.name for t in tensors if isinstance(t, Lazy))))
        has_rows = partial(_has_rows, dim=most, rows=self.rows)
        result = self._handles(
            self._node(name, func, (tuple(args), options), place, has_rows, is_constant=True)
        )
        if is_view(name):
            for tensor in (*tensors, result):
                if isinstance(tensor, Lazy):
                    tensor.is_shared = True
        return result

    def _make(self, func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Make an operation with values; it must not change them."""
        result = func(*realized(args), **realized(options))
        for tensor in tensors_in((args, options)):
            if isinstance(tensor, Lazy) and tensor.node.checked().requires_grad:
                raise Deviated("a tensor that nothing moves is given a gradient")
        return result

    def real(self, handle: Lazy) -> Tensor:
        """Return the values of a lazy tensor, and keep its rows."""
        node = handle.node
        if node.value is None and self.kept is not None:
            unknown = self.kept.unknown(node.name, self.positions)
            if unknown is not None and 0 < len(unknown) < self.rows:
                self._complete(node, self.kept, unknown)
        if node.value is None:
            self._evaluate(node)
        self._keep(node)
        return node.checked()

    def _keep(self, node: Node) -> None:
        if self.kept is not None and not node.is_kept:
            self.kept.keep(node.name, self.positions, node.checked(), is_constant=node.is_constant)
            node.is_kept = True

    def _complete(self, node: Node, kept: Kept, unknown: Tensor) -> None:
        """Compute and keep the rows that are not known, by themselves."""
        if len(unknown) < MIN_ROWS:
            others = torch.ones(self.rows, dtype=torch.bool)
            others[unknown] = False
            unknown = torch.cat([unknown, others.nonzero().flatten()[: MIN_ROWS - len(unknown)]])
        self.is_suspended = True
        try:
            found = self._compute_at(node, unknown)
        finally:
            self.is_suspended = False
        kept.keep(node.name, self.positions[unknown], found, is_constant=node.is_constant)

    def _node(
        self,
        name: str,
        run: Callable[..., Any],
        args: Arguments,
        place: str,
        has_rows: Callable[[Tensor], bool],
        *,
        is_constant: bool,
    ) -> Node:
        if place in self.refused:
            raise NotPutOff
        parents: list[Node] = []
        given = [tensor.node for tensor in tensors_in(args) if isinstance(tensor, Lazy)]
        is_constant = is_constant and all(parent.is_constant for parent in given)

        def enter(value: Any) -> Any:
            if isinstance(value, Tensor):
                parents.append(
                    value.node
                    if isinstance(value, Lazy)
                    else self._enter(value, place, len(parents), has_rows(value), is_constant=is_constant)
                )
                return _Slot(len(parents) - 1)
            if type(value) in (tuple, list):
                return type(value)(map(enter, value))
            if type(value) is dict:
                return {key: enter(each) for key, each in value.items()}
            if type(value) not in _PLAIN:
                raise NotPutOff
            return value

        template, autocast = enter(args), _autocast(self.kind)
        if self.kept is not None and self.kept.args.setdefault(place, repr(template)) != repr(template):
            self.refused.add(place)
            raise NotPutOff
        name = _digest(name, repr(template), repr(autocast), *(parent.name for parent in parents))
        return Node(name, is_constant, run, template, parents, autocast)

    def _enter(self, tensor: Tensor, place: str, number: int, has_rows: bool, *, is_constant: bool) -> Node:
        """Return a value that enters from outside, after a look whether it is the same as before."""
        if tensor.requires_grad or type(tensor) not in (Tensor, nn.Parameter):
            raise NotPutOff
        shape = tuple(tensor.shape[1:] if has_rows else tensor.shape)
        name = _digest(place, repr((number, shape, tensor.dtype, tensor.device, has_rows)))
        positions = self.positions if has_rows else None
        if self.kept is not None and not self.kept.is_same(name, positions, tensor, is_constant=is_constant):
            self.refused.add(place)
            raise NotPutOff
        node = Node(name, is_constant=True, is_given=True, is_by_row=has_rows)
        node.set(tensor)
        return node

    def _has_rows(self, tensor: Tensor) -> bool:
        return tensor.dim() > 0 and tensor.shape[0] == self.rows

    def _handles(self, node: Node) -> Any:
        """Return lazy tensors in place of a value.

        Raises:
            NotPutOff: the value does not have one row for each example.
        """
        if node.name not in self.shapes:
            self._evaluate(node)
            self.shapes[node.name] = _shapes(node.value, self.rows)
        shapes = self.shapes[node.name]
        if shapes is None:
            raise NotPutOff
        if isinstance(shapes, list):
            return tuple(None if own is None else self._item(node, n, own) for n, own in enumerate(shapes))
        return self._handle(node, shapes)

    def _item(self, node: Node, number: int, shape: Any) -> Lazy:
        """Return one tensor of a tuple."""
        name, args = _digest(node.name, str(number)), ((_Slot(0), number), {})
        return self._handle(Node(name, node.is_constant, getitem, args, [node]), shape)

    def _handle(self, node: Node, shape: Any) -> Lazy:
        handle = Lazy(node, self, (self.rows, *shape[0]), shape[1:])
        self._handed_out.append(weakref.ref(handle))
        return handle

    def _evaluate(self, root: Node) -> None:
        """Compute a value and those before it, in place; a value that nothing needs any more is dropped."""
        waiting = [root]
        while waiting:
            node = waiting[-1]
            if node.value is not None or self._recall(node):
                waiting.pop()
            elif missing := [parent for parent in node.parents if parent.value is None]:
                waiting += missing
            else:
                self._keep_constants(node)
                node.set(self._run(node, [parent.checked() for parent in node.parents], self.rows))

    def _recall(self, node: Node) -> bool:
        """Take a value from what is kept, in place, if all its rows are."""
        unknown = None if self.kept is None else self.kept.unknown(node.name, self.positions)
        if self.kept is None or unknown is None or len(unknown):
            return False
        node.set(self.kept.at(node.name, self.positions))
        node.is_kept = True
        return True

    def _keep_constants(self, node: Node) -> None:
        """Keep, for later visits, what comes before the first parameter that is not frozen."""
        for parent in () if node.is_constant else node.parents:
            if parent.is_constant and not parent.is_given and isinstance(parent.value, Tensor):
                self._keep(parent)

    def _compute_at(self, root: Node, places: Tensor) -> Any:
        """Return some rows of a value, computed by themselves."""
        found: dict[Node, Any] = {}
        waiting = [root]
        while waiting:
            node = waiting[-1]
            if node in found:
                waiting.pop()
            elif node.value is not None:
                value = node.checked()
                found[node] = _taken(value, places) if node.is_by_row else value
            elif missing := [parent for parent in node.parents if parent not in found]:
                waiting += missing
            else:
                found[node] = self._run(node, [found[parent] for parent in node.parents], len(places))
        return found[root]

    def _run(self, node: Node, values: Sequence[Any], rows: int) -> Any:
        assert node.compute is not None
        args, options = _filled(node.args, values, rows)
        if node.autocast == _autocast(self.kind):
            return realized(node.compute(*args, **options))
        enabled, dtype = node.autocast or (False, None)
        with torch.autocast(self.kind, enabled=enabled, dtype=dtype):
            return realized(node.compute(*args, **options))


_PLAIN = (type(None), bool, int, float, str, slice, type(...), torch.dtype, torch.device, _Count)


def _filled(template: Any, values: Sequence[Any], rows: int) -> Any:
    if isinstance(template, _Slot):
        return values[template.number]
    if template is _COUNT:
        return rows
    if isinstance(template, tuple | list):
        return type(template)(_filled(each, values, rows) for each in template)
    if isinstance(template, dict):
        return {key: _filled(each, values, rows) for key, each in template.items()}
    return template


@lru_cache(maxsize=100_000)
def _digest(*texts: str) -> str:
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=12).hexdigest()


def _shapes(value: Any, rows: int) -> Any:
    """Return the shape of a row, type and place of a value or of each in a tuple; None for anything else."""
    if type(value) is tuple and value and not all(each is None for each in value):
        shapes = [None if each is None else _shapes(each, rows) for each in value]
        fits = all(
            each is None or isinstance(shape, tuple) for each, shape in zip(value, shapes, strict=True)
        )
        return shapes if fits else None
    if type(value) is Tensor and value.dim() and len(value) == rows and not value.requires_grad:
        return tuple(value.shape[1:]), value.dtype, value.device
    return None


def _taken(value: Any, places: Tensor) -> Any:
    """Return some rows of a tensor, or of each tensor in a tuple."""
    if isinstance(value, tuple):
        return tuple(_taken(each, places) for each in value)
    return value if value is None else value[places]


def _has_rows(tensor: Tensor, *, dim: int, rows: int) -> bool:
    return tensor.dim() == dim and tensor.shape[0] == rows


def _autocast(kind: str) -> Autocast | None:
    """Return whether autocast is on, and its type; None where it is off."""
    if kind not in ("cpu", "cuda", "mps") or not torch.is_autocast_enabled(kind):
        return None
    return True, torch.get_autocast_dtype(kind)
