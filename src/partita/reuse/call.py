"""The computation of the loss of one batch, in which modules and operations are put off.

While the loss is computed, modules in which nothing moves return a lazy tensor instead of running. Operations
that treat every row by itself give further ones; any other operation, and any with a parameter that moves,
needs values.
"""

import hashlib
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import getitem
from typing import Any, NoReturn

from torch import Tensor, nn

from partita.reuse.lazy import Arguments, Deviated, Lazy, Node, NotPutOff, realized
from partita.reuse.rowwise import IN_PLACE, PLAIN, RULES, is_view, sizes_of, tensors_in
from partita.reuse.values import COUNT, Count, Slot, Values, autocast_of


@dataclass(eq=False)
class Call:
    """The computation of the loss of one batch."""

    values: Values
    shapes: dict[str, Any]
    """The shapes of computed values by name, without the number of rows, and for each place at which a tensor
    enters, whether it has rows; grows in place."""
    refused: set[str]
    """Calls that are not put off, because other values entered than before; grows in place."""
    _calls: Counter[str] = field(default_factory=Counter)
    _handed_out: list[weakref.ref["Lazy"]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.values.rows

    @property
    def is_open(self) -> bool:
        """Whether calls are put off now."""
        return not self.values.is_partial

    def real(self, handle: Lazy) -> Tensor:
        """Return the values of a lazy tensor, and keep its rows."""
        return self.values.need(handle.node)

    def close(self) -> None:
        """Compute, in place, the lazy tensors that are still referenced, before parameters move."""
        for reference in self._handed_out:
            if (handle := reference()) is not None:
                self.real(handle)
        self.values.kept = None

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
            if not args:  # The rules look for the tensor in the first place.
                return self._make(func, args, options)
            if func in IN_PLACE or (func in RULES and options.pop("inplace", False)):
                return self._change(IN_PLACE.get(func, func), args, options)
            return self._put_off(func, args, options)
        except NotPutOff:
            return self._make(func, args, options)

    def _change(self, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Change a lazy tensor in place."""
        handle = args[0]
        if not isinstance(handle, Lazy) or handle.has_views:
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
            args[0].has_views = True
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
            args = (args[0], (COUNT, *sizes_of(args)[1:]))
        most = max(tensor.dim() for tensor in tensors)
        place = self._place(_digest(name, *(t.node.name for t in tensors if isinstance(t, Lazy))))
        has_rows = partial(_has_rows, dim=most, rows=self.rows)
        result = self._handles(
            self._node(name, func, (tuple(args), options), place, has_rows, is_constant=True)
        )
        if is_view(name):
            for tensor in (*tensors, result):
                if isinstance(tensor, Lazy):
                    tensor.has_views = True
        return result

    def _make(self, func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Make an operation with values; it must not change them."""
        result = func(*realized(args), **realized(options))
        for tensor in tensors_in((args, options)):
            if isinstance(tensor, Lazy) and tensor.node.checked().requires_grad:
                raise Deviated("a tensor that nothing moves is given a gradient")
        return result

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
            kind = type(value)
            if kind in PLAIN or kind is Count:
                return value
            if kind is tuple or kind is list:
                return kind(map(enter, value))
            if kind is dict:
                return {key: enter(each) for key, each in value.items()}
            if kind is Lazy:
                parents.append(value.node)
            elif isinstance(value, Tensor):
                number = len(parents)
                parents.append(self._enter(value, place, number, has_rows(value), is_constant=is_constant))
            else:
                raise NotPutOff
            return Slot(len(parents) - 1)

        template, autocast = enter(args), autocast_of(self.values.kind)
        self._expect(place, repr(template), place)
        name = _digest(name, repr(template), repr(autocast), *(parent.name for parent in parents))
        return Node(name, is_constant, run, template, parents, autocast)

    def _enter(self, tensor: Tensor, place: str, number: int, has_rows: bool, *, is_constant: bool) -> Node:
        """Return a value that enters from outside, after a look whether it is the same as before."""
        if tensor.requires_grad or type(tensor) not in (Tensor, nn.Parameter):
            raise NotPutOff
        where = f"{place}.{number}"
        # A tensor that does not grow with the batch is the same for all rows, also where it has as many.
        has_rows = self.shapes.setdefault(where, has_rows) and has_rows
        about = repr((tuple(tensor.shape[has_rows:]), tensor.dtype, tensor.device, has_rows))
        self._expect(where, about, place)
        name, kept = _digest(where, about), self.values.kept
        positions = self.values.positions if has_rows else None
        if kept is not None and not kept.is_same(name, positions, tensor, is_constant=is_constant):
            self._refuse(place)
        node = Node(name, is_constant=True, is_given=True, is_by_row=has_rows)
        node.set(tensor)
        return node

    def _expect(self, name: str, about: str, place: str) -> None:
        """Refuse a call that is another than before."""
        kept = self.values.kept
        if kept is not None and kept.args.setdefault(name, about) != about:
            self._refuse(place)

    def _refuse(self, place: str) -> NoReturn:
        self.refused.add(place)
        raise NotPutOff

    def _has_rows(self, tensor: Tensor) -> bool:
        return tensor.dim() > 0 and tensor.shape[0] == self.rows

    def _handles(self, node: Node) -> Any:
        """Return lazy tensors in place of a value.

        Raises:
            NotPutOff: the value does not have one row for each example.
        """
        if node.name not in self.shapes:
            self.values.compute(node)
            self.shapes[node.name] = _shapes(node.value, self.rows)
        shapes = self.shapes[node.name]
        if shapes is None:
            raise NotPutOff
        if isinstance(shapes, list):
            return tuple(None if own is None else self._item(node, n, own) for n, own in enumerate(shapes))
        return self._handle(node, shapes)

    def _item(self, node: Node, number: int, shape: Any) -> Lazy:
        """Return one tensor of a tuple."""
        name, args = _digest(node.name, str(number)), ((Slot(0), number), {})
        return self._handle(Node(name, node.is_constant, getitem, args, [node]), shape)

    def _handle(self, node: Node, shape: Any) -> Lazy:
        handle = Lazy(node, self, (self.rows, *shape[0]), shape[1:])
        self._handed_out.append(weakref.ref(handle))
        return handle


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


def _has_rows(tensor: Tensor, *, dim: int, rows: int) -> bool:
    return tensor.dim() == dim and tensor.shape[0] == rows
