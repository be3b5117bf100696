"""Serialized `tf.train.Example` records, encoded by hand."""

import struct

import pytest

from partita.data.importers.example_proto import read_example
from tff_files import entry, example, feature, field, varint

PRINTED = (
    b"\nR\n\x11\n\x08feature0\x12\x05\x1a\x03\n\x01\x00\n\x11\n\x08feature1\x12\x05\x1a\x03\n\x01\x04"
    b"\n\x14\n\x08feature2\x12\x08\n\x06\n\x04goat\n\x14\n\x08feature3\x12\x08\x12\x06\n\x04[\xd3|?"
)
"""The record in TensorFlow's guide to TFRecord, with False, 4, "goat" and 0.9876."""


def test_the_record_of_tensorflows_own_guide_is_read() -> None:
    found = read_example(PRINTED)

    nearest = struct.unpack("<f", struct.pack("<f", 0.9876))[0]
    assert found == {"feature0": [0], "feature1": [4], "feature2": [b"goat"], "feature3": [nearest]}


def test_packed_and_unpacked_numbers_are_the_same() -> None:
    floats = b"".join(bytes([1 * 8 + 5]) + struct.pack("<f", value) for value in (0.5, -2.0))
    ints = b"".join(bytes([1 * 8 + 0]) + varint(value) for value in (300, -1))
    unpacked = field(1, entry("f", field(2, floats)) + entry("i", field(3, ints)))

    found = read_example(unpacked)

    assert found == {"f": [0.5, -2.0], "i": [300, -1]}
    assert read_example(example(f=[0.5, -2.0], i=[300, -1])) == found


@pytest.mark.parametrize("value", [0, 127, 128, -1, 2**63 - 1, -(2**63)])
def test_whole_numbers_are_signed_with_64_bits(value: int) -> None:
    assert read_example(example(x=[value])) == {"x": [value]}


def test_empty_features_are_empty_lists() -> None:
    parts = (
        entry("kindless", b"") + entry("listless", field(1, b"")) + entry("blank", field(1, field(1, b"")))
    )

    found = read_example(field(1, parts))

    assert found == {"kindless": [], "listless": [], "blank": [b""]}
    assert read_example(b"") == {}


def test_bytes_are_not_decoded() -> None:
    assert read_example(example(x=[b"\xff\x00", b"two"])) == {"x": [b"\xff\x00", b"two"]}


BAD = {
    "The bytes end inside a number": b"\x80",
    "2 bytes should follow byte 2, got 1": b"\n\x02x",
    "must fit in 64 bits": b"\n" + b"\xff" * 10,
    "must fit in 64 bits, got a longer": b"\n" + b"\xff" * 9 + b"\x02",
    "Unknown wire type 3": b"\x0b",
    "Unknown field 2 of wire type 2 in Example": field(2, b""),
    "Unknown field 1 of wire type 0 in Example": b"\x08\x01",
    "Field 1 of Example is repeated": field(1, b"") * 2,
    "Unknown field 3 of wire type 2 in Features": field(1, field(3, b"")),
    "The feature 'x' is repeated": field(1, entry("x", b"") * 2),
    "The feature 'x' must be one list, got 2": field(1, entry("x", feature([1]) + feature([b"1"]))),
    "name must be UTF-8": field(1, field(1, field(1, b"\xff"))),
    "Packed floats must be 4 bytes each, got 3 bytes": field(1, entry("x", field(2, field(1, b"abc")))),
    "Unknown field 1 of wire type 0 in a list of floats": field(1, entry("x", field(2, b"\x08\x01"))),
    "Unknown field 2 of wire type 2 in a list of whole numbers": field(
        1, entry("x", field(3, field(2, b"\x01")))
    ),
    "Unknown field 1 of wire type 1 in a list of bytes": field(1, entry("x", field(1, b"\x09" + bytes(8)))),
}


@pytest.mark.parametrize(("why", "data"), BAD.items(), ids=BAD)
def test_malformed_bytes_are_refused(why: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=why):
        read_example(data)


def test_a_truncated_record_is_refused() -> None:
    record = example(pixels=[1.0, 0.25], label=[61])

    for end in range(1, len(record)):
        with pytest.raises(ValueError, match="should follow|inside a number"):
            read_example(record[:end])
