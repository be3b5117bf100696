"""Reading serialized `tf.train.Example` records, without TensorFlow and without protobuf.

An Example has one field, number 1: the Features. Features repeat field 1, the entries of a map from names to
Feature. A Feature is one of three lists: bytes in field 1, floats in field 2, whole numbers in field 3. Any
other field is an error.
"""

import struct
from collections.abc import Callable, Iterator, Mapping

Values = list[bytes] | list[float] | list[int]
"""The values of a feature, all of one type; an empty list if it has none."""
_Field = tuple[int, int, int | bytes]
"""A field's number, its wire type and its value: an int for a varint, else bytes."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_example(data: bytes) -> dict[str, Values]:
    r"""Return the features of a serialized Example by name.

    >>> read_example(b"\n\r\n\v\n\x01x\x12\x06\x1a\x04\n\x02\x07\x08")
    {'x': [7, 8]}

    Raises:
        ValueError: the bytes are not an Example, or have an unknown field, a repeated name or a feature of
            two types.
    """
    features = _once(data, (1,), "Example").get(1, b"")
    found: dict[str, Values] = {}
    for number, wire, entry in _fields(features):
        _check(number, wire, (1,), "Features")
        parts = _once(_bytes(entry), (1, 2), "a feature's entry")
        name = _text(parts.get(1, b""))
        if name in found:
            raise ValueError(f"The feature {name!r} is repeated.")
        found[name] = _read_feature(parts.get(2, b""), name)
    return found


def _read_feature(data: bytes, name: str) -> Values:
    kinds = _once(data, (1, 2, 3), f"the feature {name!r}")
    if len(kinds) > 1:
        raise ValueError(f"The feature {name!r} must be one list, got {len(kinds)}.")
    for kind, values in kinds.items():
        return _LISTS[kind](values)
    return []


def _read_bytes(data: bytes) -> list[bytes]:
    values: list[bytes] = []
    for number, wire, value in _fields(data):
        _check(number, wire, (1,), "a list of bytes")
        values.append(_bytes(value))
    return values


def _read_floats(data: bytes) -> list[float]:
    values: list[float] = []
    for number, wire, value in _fields(data):
        if number != 1 or wire not in (_BYTES, _FIXED32):
            raise ValueError(f"Unknown field {number} of wire type {wire} in a list of floats.")
        packed = _bytes(value)
        if len(packed) % 4:
            raise ValueError(f"Packed floats must be 4 bytes each, got {len(packed)} bytes.")
        values += struct.unpack(f"<{len(packed) // 4}f", packed)
    return values


def _read_ints(data: bytes) -> list[int]:
    values: list[int] = []
    for number, wire, value in _fields(data):
        if number != 1 or wire not in (_BYTES, _VARINT):
            raise ValueError(f"Unknown field {number} of wire type {wire} in a list of whole numbers.")
        if isinstance(value, int):
            values.append(_signed(value))
            continue
        at = 0
        while at < len(value):
            one, at = _varint(value, at)
            values.append(_signed(one))
    return values


_LISTS: Mapping[int, Callable[[bytes], Values]] = {1: _read_bytes, 2: _read_floats, 3: _read_ints}


def _once(data: bytes, numbers: tuple[int, ...], what: str) -> dict[int, bytes]:
    """Return the fields of a message that has each of `numbers` at most once, all of them bytes."""
    found: dict[int, bytes] = {}
    for number, wire, value in _fields(data):
        _check(number, wire, numbers, what)
        if number in found:
            raise ValueError(f"Field {number} of {what} is repeated.")
        found[number] = _bytes(value)
    return found


def _check(number: int, wire: int, numbers: tuple[int, ...], what: str) -> None:
    if number not in numbers or wire != _BYTES:
        raise ValueError(f"Unknown field {number} of wire type {wire} in {what}.")


def _fields(data: bytes) -> Iterator[_Field]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
        elif wire in (_FIXED64, _FIXED32):
            value, at = _take(data, at, 8 if wire == _FIXED64 else 4)
        elif wire == _BYTES:
            length, at = _varint(data, at)
            value, at = _take(data, at, length)
        else:
            raise ValueError(f"Unknown wire type {wire} at byte {at}.")
        yield number, wire, value


def _take(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    end = at + length
    if end > len(data):
        raise ValueError(f"{length} bytes should follow byte {at}, got {len(data) - at}.")
    return data[at:end], end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError(f"The bytes end inside a number, at byte {at}.")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, at
    raise ValueError(f"A number must fit in 64 bits, got a longer one that ends at byte {at}.")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes), "the wire type was checked"
    return value


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"A feature's name must be UTF-8, got {name!r}.") from error
