"""Operations of torch that treat every row, that is every example of a batch, by itself.

Each has a rule that says when it does: a mean over dimension 0 mixes rows, one over dimension 1 does not. An
operation without a rule is computed at once, whatever it does.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Rule = Callable[[int, Sequence[Any], Mapping[str, Any]], bool]
"""From the number of rows and the arguments to whether rows stay apart."""
Rules = dict[Any, tuple[str, Rule]]


def _elementwise(rows: int, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    return isinstance(args[0], Tensor) and len(tensors_in((args, options))) == 1


def _broadcast(rows: int, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Tensors with as many dimensions as the result have one row for each example, or one for all."""
    tensors = tensors_in((args, options))
    most = max(tensor.dim() for tensor in tensors)
    return all(_fits(tensor, most, rows) for tensor in tensors)


def _fits(tensor: Tensor, most: int, rows: int) -> bool:
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return tensor.dim() < most or tensor.dim() == 0 or tensor.shape[0] in (1, rows)
    return tensor.dim() == most and tensor.shape[0] == rows


def _over_dims(rows: int, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    dims = args[1] if len(args) > 1 else options.get("dim")
    own = args[0].dim()
    dims = [dims] if type(dims) is int else dims
    return isinstance(dims, list | tuple) and bool(dims) and all(type(d) is int and d % own for d in dims)


def _flatten(rows: int, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    start = args[1] if len(args) > 1 else options.get("start_dim", 0)
    return start % args[0].dim() > 0


def _two_dims(rows: int, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    dims = [*args[1:], *options.values()]
    return len(dims) == 2 and all(dim % args[0].dim() for dim in dims)


def _permute(rows: int, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    dims = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    return bool(dims) and dims[0] % args[0].dim() == 0


def _new_dim(rows: int, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    dim = args[1] if len(args) > 1 else options.get("dim", 0)
    return dim % (args[0].dim() + 1) > 0


def _sizes(rows: int, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    sizes = sizes_of(args)
    return bool(sizes) and not options and all(type(size) is int for size in sizes) and sizes[0] in (-1, rows)


def sizes_of(args: Sequence[Any]) -> Sequence[Any]:
    """Return the sizes that a call of `view` or `reshape` is given."""
    return args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]


def _index(rows: int, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    if not all(each is None or each is ... or type(each) in (int, slice) for each in index):
        return False
    if index[0] is ...:
        return sum(each is not None for each in index[1:]) < args[0].dim()
    return isinstance(index[0], slice) and index[0] == slice(None)


def _pooling(dims: int) -> Rule:
    def rule(rows: int, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
        return args[0].dim() == dims + 2 and not options.get("return_indices")

    return rule


def _joined(rows: int, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    dim = args[1] if len(args) > 1 else options.get("dim", 0)
    most = args[0][0].dim()
    return all(each.dim() == most and each.shape[0] == rows for each in args[0]) and dim % most > 0


_KINDS: dict[Rule, str] = {
    _elementwise: "relu gelu silu tanh sigmoid elu selu leaky_relu relu6 hardtanh hardswish hardsigmoid mish "
    "softplus exp log sqrt rsqrt square abs neg __neg__ clamp sin cos clone float double contiguous detach",
    _broadcast: "add sub mul div true_divide pow maximum minimum where masked_fill rsub __add__ __radd__ "
    "__sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __pow__ __div__ __rdiv__",
    _over_dims: "mean sum amax amin softmax log_softmax logsumexp squeeze",
    _flatten: "flatten",
    _two_dims: "transpose swapaxes",
    _permute: "permute",
    _new_dim: "unsqueeze",
    _sizes: "view reshape",
    _index: "__getitem__",
    _pooling(1): "max_pool1d avg_pool1d adaptive_avg_pool1d",
    _pooling(2): "max_pool2d avg_pool2d adaptive_avg_pool2d",
    _joined: "cat concat",
}
_VIEWS = frozenset(
    [
        *("float", "double", "contiguous", "detach", "squeeze", "flatten", "transpose", "swapaxes"),
        *("permute", "unsqueeze", "view", "reshape", "__getitem__"),
    ]
)
"""Operations whose result may share memory with their input."""
_IN_PLACE = {"relu_": "relu", "add_": "add", "__iadd__": "add", "mul_": "mul", "__imul__": "mul"}


def _rules() -> Rules:
    rules: Rules = {}
    for rule, names in _KINDS.items():
        for name in names.split():
            for owner in (torch, Tensor, functional):
                if (function := getattr(owner, name, None)) is not None:
                    rules[function] = name, rule
    return rules


RULES = _rules()
"""The operations that have a rule, with their names."""
IN_PLACE = {
    function: getattr(torch, plain)
    for name, plain in _IN_PLACE.items()
    for owner in (torch, Tensor)
    if (function := getattr(owner, name, None)) is not None
}
"""Operations that change their first argument, each with one that computes the same and does not."""
FACTS = frozenset(
    getattr(Tensor, name) if callable(getattr(Tensor, name)) else getattr(Tensor, name).__get__
    for name in (
        *("shape", "ndim", "dtype", "device", "layout", "requires_grad", "is_cuda", "is_meta", "grad_fn"),
        *("dim", "size", "numel", "nelement", "__len__", "is_floating_point", "is_complex", "is_leaf"),
    )
)
"""Attributes that are known without a tensor's values."""


def is_view(name: str) -> bool:
    """Return whether the result of an operation may share memory with its input."""
    return name in _VIEWS


PLAIN = frozenset([type(None), bool, int, float, str, slice, type(...), torch.dtype, torch.device])
"""The types of arguments that say everything about themselves."""


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, lists and dicts."""
    found: list[Tensor] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[Tensor]) -> None:
    # Asking whether something is a tensor takes a microsecond, so it comes after what is quicker.
    if type(value) in PLAIN:
        return
    if isinstance(value, tuple | list):
        for each in value:
            _collect(each, found)
    elif isinstance(value, dict):
        for each in value.values():
            _collect(each, found)
    elif isinstance(value, Tensor):
        found.append(value)
