"""Rows that are kept for one device: the inputs and outputs of a computation.

Positions in the device's training examples say where a row belongs. They are a hint: a row counts as known
only where what enters the computation is the same as when it was kept, value by value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class _Rows:
    values: Tensor
    known: Tensor
    """By position, whether there is a value."""
    strides: tuple[int, ...] | None
    """The layout of a batch of such rows, None for a contiguous one."""
    is_constant: bool
    """Whether it is valid in later visits too."""

    def at(self, positions: Tensor) -> Tensor:
        found = self.values[positions]
        if self.strides is None:
            return found
        same = torch.empty_strided(found.shape, self.strides, dtype=found.dtype, device=found.device)
        return same.copy_(found)


@dataclass
class Kept:
    """The kept rows of one device, by name."""

    size: int
    """The number of training examples of the device."""
    rows: dict[str, _Rows] = field(default_factory=dict)
    whole: dict[str, tuple[Tensor, bool]] = field(default_factory=dict)
    """Tensors that are the same for all rows, and whether they are valid in later visits too."""
    is_new: bool = False
    """Whether rows that are valid in later visits were added."""
    args: dict[str, str] = field(default_factory=dict)
    """The arguments of calls, apart from tensors."""

    @property
    def nbytes(self) -> int:
        """The bytes of everything that is kept."""
        return sum(rows.values.nbytes for rows in self.rows.values()) + sum(
            tensor.nbytes for tensor, _ in self.whole.values()
        )

    @property
    def bytes_per_example(self) -> int:
        """The bytes of the rows of one example."""
        return sum(rows.values.nbytes for rows in self.rows.values()) // self.size

    def is_same(self, name: str, positions: Tensor | None, tensor: Tensor, *, is_constant: bool) -> bool:
        """Return whether a tensor equals its kept rows; keep, in place, those that are new.

        Args:
            name: the name to keep it under.
            positions: the positions of its rows, None for a tensor that is the same for all rows.
            tensor: the tensor.
            is_constant: whether it is to be kept for later visits.
        """
        if positions is None:
            if name not in self.whole:
                self.whole[name] = tensor.detach().clone(), is_constant
                self.is_new = self.is_new or is_constant
            return torch.equal(self.whole[name][0], tensor)
        found = self.rows.get(name)
        if found is not None:
            known = found.known[positions]
            if known.all():
                return torch.equal(found.values[positions], tensor)
            if not torch.equal(found.values[positions[known]], tensor[known]):
                return False
        self.keep(name, positions, tensor, is_constant=is_constant)
        return True

    def unknown(self, name: str, positions: Tensor) -> Tensor | None:
        """Return the places in `positions` whose rows are not known, None if there is none of them."""
        if name not in self.rows:
            return None
        return (~self.rows[name].known[positions]).nonzero().flatten()

    def at(self, name: str, positions: Tensor) -> Tensor:
        """Return the rows at some positions, all of them known, in the layout in which they were computed."""
        return self.rows[name].at(positions)

    def keep(self, name: str, positions: Tensor, tensor: Tensor, *, is_constant: bool) -> None:
        """Keep rows, in place; a layout that cannot be reproduced is not kept."""
        if not _is_reproducible(tensor):
            return
        found = self.rows.get(name)
        if found is None:
            values = torch.empty((self.size, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
            strides = None if tensor.is_contiguous() else tensor.stride()
            known = torch.zeros(self.size, dtype=torch.bool)
            self.rows[name] = found = _Rows(values, known, strides, is_constant)
        self.is_new = self.is_new or found.is_constant
        with torch.no_grad():
            found.values[positions] = tensor
            found.known[positions] = True

    def tensors(self) -> dict[str, Tensor]:
        """Return everything as tensors by name."""
        tensors = {"size": torch.tensor(self.size)}
        for name, rows in self.rows.items():
            strides = torch.tensor(rows.strides or (), dtype=torch.long)
            tensors |= {f"rows.{name}": rows.values, f"known.{name}": rows.known, f"strides.{name}": strides}
        return tensors | {f"whole.{name}": tensor for name, (tensor, _) in self.whole.items()}

    @staticmethod
    def of(tensors: Mapping[str, Tensor], accelerator: torch.device) -> "Kept":
        """Return what `tensors` was made of, with values on an accelerator."""
        kept = Kept(int(tensors["size"]))
        for key, tensor in tensors.items():
            kind, _, name = key.partition(".")
            if kind == "rows":
                strides = tuple(tensors[f"strides.{name}"].tolist()) or None
                kept.rows[name] = _Rows(
                    tensor.to(accelerator), tensors[f"known.{name}"], strides, is_constant=True
                )
            elif kind == "whole":
                kept.whole[name] = tensor.to(accelerator), True
        return kept

    def forget(self) -> None:
        """Drop, in place, the rows that are not valid in later visits."""
        self.rows = {name: rows for name, rows in self.rows.items() if rows.is_constant}
        self.args = {}
        self.whole = {name: both for name, both in self.whole.items() if both[1]}


def _is_reproducible(tensor: Tensor) -> bool:
    """Return whether the layout of a batch is that of its rows, one behind the other, without overlap."""
    if tensor.is_contiguous():
        return True
    spans = sorted(zip(tensor.stride()[1:], tensor.shape[1:], strict=True))
    reach = 1
    for stride, length in spans:
        if length > 1 and stride < reach:
            return False
        reach = max(reach, stride * (length - 1) + reach)
    return tensor.stride(0) >= reach
