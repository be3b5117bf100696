"""Trial runs of a model's modules: which can be deferred, and compute each row independently of its batch.

A module is refused as a whole, and those inside it are tried, where a call of it draws random numbers,
changes a tensor or an attribute, lets a value escape to Python, returns anything but tensors with one row per
example, or computes a row with other bits in another batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from partita.reuse.rowwise import FACTS, tensors_in
from partita.reuse.still import State
from partita.tasks.build import random_state


@dataclass(frozen=True)
class Mark:
    """A tensor as it was: its shape, and a digest of its bits, for each row where it has rows."""

    has_rows: bool
    shape: tuple[int, ...]
    digest: Tensor

    @staticmethod
    def of(tensor: Tensor, rows: int) -> "Mark":
        """Return the mark of a tensor in a batch of some rows."""
        has_rows = tensor.dim() > 0 and len(tensor) == rows
        kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        bits = tensor.detach().contiguous().view(kind).reshape(rows if has_rows else 1, -1)
        # A sum of int64 with odd factors, which wraps around: a change of any bit changes it.
        factors = torch.arange(1, 2 * bits.shape[1], 2, device=bits.device) * 0x9E3779B97F4A7C1
        return Mark(has_rows, tuple(tensor.shape[has_rows:]), (bits * factors).sum(dim=1))

    def at(self, places: Tensor) -> Tensor:
        """Return the digests of some rows, or of the whole."""
        return self.digest[places] if self.has_rows else self.digest


Rows = tuple[list[Mark], list[Mark]]
"""The tensors that entered a module, and those that it returned."""


@dataclass(eq=False)
class Trial:
    """Takes the place of a module's `forward` in trial runs: runs the module and watches it."""

    module: nn.Module
    rows: int = 0
    """The number of examples in the batch that is run."""
    is_watched: bool = False
    """Whether to look for reasons to refuse the module."""
    reason: str = ""
    """The reason to refuse it."""
    has_gradient: bool = False
    """Whether something with a gradient has entered it."""
    operations: int = 0
    """Floating-point operations in a watched run."""
    calls: list[Rows] = field(default_factory=list)
    """Each call in a run."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run the module."""
        run = MethodType(type(self.module).forward, self.module)
        entered = tensors_in((args, options))
        if any(tensor.requires_grad for tensor in entered):
            self.has_gradient = True
            return run(*args, **options)
        if self.is_watched:
            self.calls.append(([], []))
            return self._watch(run, args, options)
        given = [Mark.of(tensor, self.rows) for tensor in entered]
        result = run(*args, **options)
        self.calls.append((given, [Mark.of(tensor, self.rows) for tensor in tensors_in(result)]))
        return result

    def _watch(self, run: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        entered, state, draws = tensors_in((args, options)), State(self.module), random_state()
        versions = [tensor._version for tensor in entered]  # noqa: SLF001
        escapes, counter = _Escapes(), FlopCounterMode(display=False)
        with escapes, counter:
            result = run(*args, **options)
        # The counter knows no recurrent layers: at least one step of each is counted.
        recurrent = (m for m in self.module.modules() if isinstance(m, nn.RNNBase))
        weights = sum(parameter.numel() for layer in recurrent for parameter in layer.parameters())
        self.operations += counter.get_total_flops() + 2 * self.rows * weights
        memory = {tensor.untyped_storage().data_ptr() for tensor in entered}
        returned = tensors_in(result)
        reasons = {
            "draws random numbers": random_state() != draws,
            "changes its tensors or attributes": not state.holds(),
            "changes its inputs": versions != [t._version for t in entered],  # noqa: SLF001
            "lets values escape to Python": escapes.found,
            "returns no rows": not _has_rows(result, self.rows),
            "returns its input": any(t.untyped_storage().data_ptr() in memory for t in returned),
        }
        self.reason = self.reason or next((reason for reason, found in reasons.items() if found), "")
        return result


class _Escapes(TorchFunctionMode):
    """Notices functions that return values of a tensor to Python, or as many rows as values say."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _COUNTING or (name == "__getitem__" and _by_mask(args[1])):
            self.found = True
        if func not in FACTS and name in _ESCAPES:
            self.found = True
        return result


_ESCAPES = frozenset(
    [
        *("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__"),
        *("__contains__", "equal", "allclose", "is_nonzero", "__iter__", "data_ptr", "__complex__"),
    ]
)
_COUNTING = frozenset(("nonzero", "masked_select", "unique", "unique_consecutive", "argwhere", "bincount"))


def _by_mask(index: Any) -> bool:
    return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors_in(index))


def _has_rows(result: Any, rows: int) -> bool:
    values = result if type(result) is tuple else (result,)
    tensors = [value for value in values if value is not None]
    return bool(tensors) and all(
        type(value) is Tensor and value.dim() > 0 and len(value) == rows and not value.requires_grad
        for value in tensors
    )


def same_rows(first: Sequence[Rows], positions: Tensor, second: Sequence[Rows], others: Tensor) -> str:
    """Return how the calls of a module in two runs differ in the rows of the same examples, "" if nowhere.

    Args:
        first: its calls in a run.
        positions: the examples of that run.
        second: its calls in another run.
        others: the examples of the other run, all of them also in the first.
    """
    places = torch.tensor([int((positions == position).nonzero()[0]) for position in others])
    if len(first) != len(second):
        return "is called a varying number of times"
    for (entered, returned), (entered_then, returned_then) in zip(first, second, strict=True):
        if not _agree(entered, entered_then, places):
            return "gets other inputs for the same examples"
        if not _agree(returned, returned_then, places):
            return "computes an example differently in another batch"
    return ""


def _agree(first: Sequence[Mark], second: Sequence[Mark], places: Tensor) -> bool:
    return len(first) == len(second) and all(
        one.has_rows == two.has_rows and one.shape == two.shape and torch.equal(one.at(places), two.digest)
        for one, two in zip(first, second, strict=True)
    )
