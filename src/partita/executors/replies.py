"""Replies as bytes, and their checks: no byte becomes a tensor before all of them are known to be right.

A reply begins with the length of its head. The head is JSON with the order's nonce and the answer; the change
of the shared part follows in the safetensors format. The server knows what it has asked for, so it knows the
names, the types, the shapes and therefore the size of the only change that it can get.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from partita.errors import one_line
from partita.executors.codec import answer_of, answer_values
from partita.params import Params, from_bytes, to_bytes
from partita.protocol import DeviceId, Evaluate, Failure, Order, Reply, Update
from partita.sums import LARGEST

_LENGTH = 4
"""Bytes of the length of a head."""
_MAX_HEAD = 2**18
"""The largest head that is accepted, in bytes."""
_TENSOR_LENGTH = 8
"""Bytes of the length of the header of the safetensors format."""
_MAX_TEXT = 2000
"""The longest reason that is accepted, in characters."""
_MAX_COUNT = 2**53
"""The largest number of examples that is accepted."""
_TRAINED = ("examples", "loss", "start_loss")
"""The measures of training."""
_COUNTS = ("examples", "weight")

_TYPES: dict[torch.dtype, tuple[str, str]] = {
    torch.float64: ("F64", "<f8"),
    torch.float32: ("F32", "<f4"),
    torch.float16: ("F16", "<f2"),
    torch.bfloat16: ("BF16", "<u2"),
    torch.int64: ("I64", "<i8"),
}
"""The types of a change: their names in the safetensors format, and the numpy type that reads their bytes."""


class Refused(ValueError):
    """A reply that is not an answer to its order; the message says why."""


@dataclass(frozen=True)
class _Tensor:
    """A tensor of a change as it must be."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Expected:
    """The only replies that an order can get."""

    device: DeviceId
    nonce: str
    shared: Params | None
    """The shared part, whose change is asked for; None where none is."""
    measures: Mapping[str, frozenset[str]]
    """The names of the measures of each split."""

    @property
    def change(self) -> dict[str, _Tensor] | None:
        """The tensors of the change; not kept, because there are as many of these objects as devices."""
        if self.shared is None:
            return None
        return {name: _changes(tensor) for name, tensor in self.shared.items()}

    @property
    def largest(self) -> int:
        """The most bytes that a reply can have."""
        change = self.change or {}
        names = sum(len(json.dumps(name)) + 200 + 24 * len(own.shape) for name, own in change.items())
        size = sum(own.size for own in change.values())
        return _LENGTH + _MAX_HEAD + (_TENSOR_LENGTH + names + size if change else 0)


def expected_of(order: Order, nonce: str, metrics: Iterable[str]) -> Expected:
    """Return what the reply to an order must be.

    Args:
        order: the order.
        nonce: the random number that names it.
        metrics: the names of the task's metrics.
    """
    if isinstance(order.work, Evaluate):
        names = frozenset((*_COUNTS, "loss", "reason", *metrics))
        return Expected(order.device, nonce, None, dict.fromkeys(order.work.splits, names))
    shared = order.shared if isinstance(order.work, Update) else None
    return Expected(order.device, nonce, shared, {"train": frozenset(_TRAINED)})


def _changes(tensor: torch.Tensor) -> _Tensor:
    """Return how a tensor changes: integers and booleans by int64."""
    return _Tensor(tensor.dtype if tensor.is_floating_point() else torch.int64, tuple(tensor.shape))


def encoded_reply(nonce: str, answer: Reply | Failure) -> bytes:
    """Return the answer to the order with a nonce as bytes."""
    head = json.dumps({"nonce": nonce, "answer": answer_values(answer)}, allow_nan=False).encode()
    change = answer.change if isinstance(answer, Reply) else None
    tensors = to_bytes(change) if change is not None else b""
    return len(head).to_bytes(_LENGTH, "big") + head + tensors


def nonce_of(content: bytes) -> str:
    """Return the nonce of a reply that this program has encoded."""
    size = int.from_bytes(content[:_LENGTH], "big")
    return json.loads(content[_LENGTH : _LENGTH + size])["nonce"]


def decoded_reply(content: bytes, expected: Expected) -> Reply | Failure:
    """Return the answer in a reply, after checking every byte of it.

    Raises:
        Refused: it is not an answer to the order.
    """
    size = int.from_bytes(content[:_LENGTH], "big")
    end = _LENGTH + size
    if not 0 < size <= _MAX_HEAD or end > len(content):
        raise Refused(f"The head of the reply must have 1 to {_MAX_HEAD} bytes, got {size}.")
    head = _parsed(content[_LENGTH:end])
    if not isinstance(head, dict) or head.keys() != {"nonce", "answer"}:
        raise Refused("The head of the reply must have `nonce` and `answer`.")
    if head["nonce"] != expected.nonce:
        raise Refused("The reply is not to this order: it has another nonce.")
    answer = _checked_answer(head["answer"], expected)
    change = expected.change
    if isinstance(answer, Failure) or change is None:
        if len(content) != end:
            raise Refused("The reply has tensors, and none were asked for.")
        return answer
    _check_tensors(memoryview(content)[end:], change)
    return answer_of(answer_values(answer), from_bytes(content[end:]))


def _parsed(content: bytes) -> Any:
    """Return strict JSON: no key twice, no NaN, not nested without end."""
    try:
        return json.loads(content, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(f"The reply has no valid JSON: {one_line(str(error))[:200]}.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key appears twice")
    return values


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _checked_answer(values: Any, expected: Expected) -> Reply | Failure:
    """Return an answer without its change."""
    if not isinstance(values, dict) or values.get("device") != expected.device:
        raise Refused(f"The reply must be that of device {expected.device!r}.")
    if values.keys() == {"device", "reason"}:
        if not _is_text(values["reason"]):
            raise Refused(f"The reason of a failure must be a text of at most {_MAX_TEXT} characters.")
        return Failure(device=expected.device, reason=one_line(values["reason"]))
    if values.keys() != {"device", "weight", "metrics"}:
        raise Refused("The answer must have `device`, `weight` and `metrics`, or `device` and `reason`.")
    if not _is_count(values["weight"]) or not values["weight"]:
        raise Refused("The weight must be a whole number, at least 1.")
    metrics = values["metrics"]
    if not isinstance(metrics, dict) or not metrics.keys() <= expected.measures.keys():
        raise Refused(f"The splits must be among {', '.join(expected.measures)}.")
    checked = {
        split: _checked_measures(split, measures, expected.measures[split])
        for split, measures in metrics.items()
    }
    return Reply(device=expected.device, weight=values["weight"], change=None, metrics=checked)


def _checked_measures(split: str, measures: Any, names: frozenset[str]) -> dict[str, Any]:
    """Return the measures of a split; a text in them as one line that every file can hold."""
    if not isinstance(measures, dict) or measures.keys() != names:
        raise Refused(f"The measures of the split `{split}` must be exactly {', '.join(sorted(names))}.")
    for name, value in measures.items():
        if name in _COUNTS:
            is_right = _is_count(value)
        elif name == "reason":
            is_right = value is None or _is_text(value)
        else:
            is_right = value is None or (isinstance(value, float) and abs(value) <= LARGEST)
        if not is_right:
            raise Refused(f"`{name}` of the split `{split}` has a value that it cannot have.")
    return {name: one_line(value) if isinstance(value, str) else value for name, value in measures.items()}


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_COUNT


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _check_tensors(content: memoryview, expected: Mapping[str, _Tensor]) -> None:
    """Raise unless bytes in the safetensors format are exactly the tensors that are expected, all finite."""
    size = int.from_bytes(content[:_TENSOR_LENGTH], "little")
    begin = _TENSOR_LENGTH + size
    if begin + sum(own.size for own in expected.values()) != len(content):
        raise Refused(f"The change has another size than the shared part: {len(content)} bytes.")
    header = _parsed(bytes(content[_TENSOR_LENGTH:begin]))
    if not isinstance(header, dict) or header.keys() != expected.keys():
        names = sorted(header.keys() ^ expected.keys()) if isinstance(header, dict) else []
        raise Refused(
            f"The change must have exactly the names of the shared part; it differs in {names[:3]}."
        )
    at = begin
    for name, entry in sorted(header.items(), key=lambda item: _begin_of(*item)):
        own = expected[name]
        place = [at - begin, at - begin + own.size]
        right = {"dtype": _TYPES[own.dtype][0], "shape": list(own.shape), "data_offsets": place}
        if entry != right:
            raise Refused(f"The change of `{name}` must be {right}, got {str(entry)[:200]}.")
        _check_finite(name, content[at : at + own.size], own.dtype)
        at += own.size


def _begin_of(name: str, entry: Any) -> tuple[int, int]:
    """Return where a tensor begins and ends; an empty one comes before the next, which begins there too."""
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(at) is int for at in offsets):
        raise Refused(f"The change of `{name}` has no place.")
    return offsets[0], offsets[1]


def _check_finite(name: str, content: memoryview, dtype: torch.dtype) -> None:
    if dtype is torch.int64:
        return
    values = np.frombuffer(content, dtype=_TYPES[dtype][1])
    # numpy has no bfloat16: where a value is not finite, all bits of its exponent are set.
    is_bfloat = dtype is torch.bfloat16
    is_finite = ((values & 0x7F80) != 0x7F80).all() if is_bfloat else np.isfinite(values).all()
    if not is_finite:
        raise Refused(f"The change of `{name}` is not finite.")


def check_can_change(shared: Params) -> None:
    """Raise a `ValueError` if tensors have a type of number that no reply can carry."""
    for name, tensor in shared.items():
        if _changes(tensor).dtype not in _TYPES:
            raise ValueError(
                f"`{name}` has the type {tensor.dtype}, which no reply over a network can carry."
            )
