"""Deferred values: they are taken from the kept rows, or computed.

A value is computed by the very module or operation that was put off, so it has the bits that it would have
had. Where some rows of a batch are kept, the others are computed by themselves, at least four at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from partita.reuse.kept import Kept
from partita.reuse.lazy import Autocast, Node, realized

MIN_ROWS = 4
"""Smaller batches are not reused: torch computes them with other bits."""


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in the arguments of a call."""

    number: int


class Count:
    """The place of the number of rows in the arguments of a call."""

    def __repr__(self) -> str:
        return "rows"


COUNT = Count()


@dataclass(eq=False)
class Values:
    """The values of one batch."""

    positions: Tensor
    """The positions of its rows."""
    kept: Kept | None
    """The kept rows of the device; None computes everything."""
    kind: str
    """The kind of accelerator."""
    is_partial: bool = False
    """Whether only some rows are being computed: then modules run at once."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.positions)

    def need(self, node: Node) -> Any:
        """Return a value, and keep its rows."""
        if node.value is None and self.kept is not None:
            unknown = self.kept.unknown(node.name, self.positions)
            if unknown is not None and 0 < len(unknown) < self.rows:
                self._complete(node, self.kept, unknown)
        if node.value is None:
            self.compute(node)
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
        self.is_partial = True
        try:
            found = self._compute_at(node, unknown)
        finally:
            self.is_partial = False
        kept.keep(node.name, self.positions[unknown], found, is_constant=node.is_constant)

    def compute(self, root: Node) -> None:
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
        """Take a value from the kept rows, in place, if all its rows are kept."""
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
        if node.autocast == autocast_of(self.kind):
            return realized(node.compute(*args, **options))
        enabled, dtype = node.autocast or (False, None)
        with torch.autocast(self.kind, enabled=enabled, dtype=dtype):
            return realized(node.compute(*args, **options))


def _filled(template: Any, values: Sequence[Any], rows: int) -> Any:
    if isinstance(template, Slot):
        return values[template.number]
    if template is COUNT:
        return rows
    if isinstance(template, tuple | list):
        return type(template)(_filled(each, values, rows) for each in template)
    if isinstance(template, dict):
        return {key: _filled(each, values, rows) for key, each in template.items()}
    return template


def _taken(value: Any, places: Tensor) -> Any:
    """Return some rows of a tensor, or of each tensor in a tuple."""
    if isinstance(value, tuple):
        return tuple(_taken(each, places) for each in value)
    return value if value is None else value[places]


def autocast_of(kind: str) -> Autocast | None:
    """Return whether autocast is on, and its type; None where it is off."""
    if kind not in ("cpu", "cuda", "mps") or not torch.is_autocast_enabled(kind):
        return None
    return True, torch.get_autocast_dtype(kind)
