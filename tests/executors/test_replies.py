"""Replies as bytes: nothing but an answer to the order is ever parsed into tensors."""

import json
import random
import struct
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from partita.executors.replies import Refused, decoded_reply, encoded_reply, expected_of, nonce_of
from partita.params import to_bytes
from partita.protocol import Evaluate, Failure, Finetune, Order, Pace, Reply, Stage, Start, Update

SHARED = {
    "layer.weight": torch.zeros(3, 2),
    "half": torch.zeros(4, dtype=torch.bfloat16),
    "steps": torch.zeros((), dtype=torch.int32),
    "none": torch.zeros(0, 5),
}
TRAIN = {"train": {"examples": 7, "loss": 0.5, "start_loss": None}}
NONCE = "0" * 32


def order(work: Update | Finetune | Evaluate) -> Order:
    start = Start(digest="d", personal=None, frozen="f")
    return Order(stage=Stage.PERSONALIZED, round=3, device="ann", work=work, shared=SHARED, start=start)


UPDATE = order(Update(personal=Pace(lr=0.1, epochs=1), shared=Pace(lr=0.1, epochs=1)))
EXPECTED = expected_of(UPDATE, NONCE, ["accuracy"])


def change() -> dict[str, Tensor]:
    return {
        "layer.weight": torch.arange(6.0).reshape(3, 2),
        "half": torch.ones(4, dtype=torch.bfloat16),
        "steps": torch.tensor(5),
        "none": torch.zeros(0, 5),
    }


def reply(**changes: Any) -> Reply:
    return replace(Reply(device="ann", weight=7, change=change(), metrics=TRAIN), **changes)


def with_head(head: bytes, tensors: bytes = b"") -> bytes:
    return len(head).to_bytes(4, "big") + head + tensors


def of_values(values: Any, tensors: bytes = b"") -> bytes:
    return with_head(json.dumps(values).encode(), tensors)


def test_a_reply_comes_back_bit_for_bit() -> None:
    content = encoded_reply(NONCE, reply())

    found = decoded_reply(content, EXPECTED)

    assert isinstance(found, Reply)
    assert found.change is not None
    assert (found.device, found.weight, found.metrics) == ("ann", 7, TRAIN)
    assert found.change.keys() == SHARED.keys()
    assert all(torch.equal(found.change[name], own) for name, own in change().items())
    assert nonce_of(content) == NONCE
    assert len(content) <= EXPECTED.largest


def test_a_failure_and_an_evaluation_come_back() -> None:
    evaluation = order(Evaluate(model="personal", splits=("train", "test")))
    measures = {"examples": 3, "weight": 3, "loss": 0.25, "accuracy": None, "reason": "no positive"}
    answer = Reply(device="ann", weight=1, change=None, metrics={"test": measures})
    failure = Failure(device="ann", reason="The loss became nan in step 2.")

    expected = expected_of(evaluation, NONCE, ["accuracy"])
    assert decoded_reply(encoded_reply(NONCE, answer), expected) == answer
    assert decoded_reply(encoded_reply(NONCE, failure), EXPECTED) == failure


def test_a_text_of_a_device_can_be_written_to_every_file() -> None:
    evaluation = order(Evaluate(model="personal", splits=("test",)))
    measures = {"examples": 3, "weight": 3, "loss": None, "accuracy": None, "reason": "a\ud800\nb\x1b"}
    answer = Reply(device="ann", weight=1, change=None, metrics={"test": measures})

    found = decoded_reply(encoded_reply(NONCE, answer), expected_of(evaluation, NONCE, ["accuracy"]))

    assert isinstance(found, Reply)
    reason = found.metrics["test"]["reason"]
    assert reason == "a\\ud800 b\\x1b"
    assert str(reason).encode()


def nan_at(name: str, value: float) -> dict[str, Tensor]:
    tensors = change()
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[-1] = value
    return tensors


WRONG_CHANGES = {
    "a personal name": {**change(), "head.bias": torch.zeros(1)},
    "a missing name": {name: tensor for name, tensor in change().items() if name != "steps"},
    "another shape": {**change(), "layer.weight": torch.zeros(2, 3)},
    "more values": {**change(), "layer.weight": torch.zeros(3, 3)},
    "another type": {**change(), "layer.weight": torch.zeros(3, 2, dtype=torch.int32)},
    "double precision": {**change(), "layer.weight": torch.zeros(3, 2, dtype=torch.float64)},
    "a NaN": nan_at("layer.weight", float("nan")),
    "infinity": nan_at("layer.weight", float("-inf")),
    "a NaN in bfloat16": nan_at("half", float("nan")),
    "infinity in bfloat16": nan_at("half", float("inf")),
    "no tensor": {},
}


@pytest.mark.parametrize("name", WRONG_CHANGES)
def test_a_change_that_is_not_one_of_the_shared_part_is_refused(name: str) -> None:
    with pytest.raises(Refused):
        decoded_reply(encoded_reply(NONCE, reply(change=WRONG_CHANGES[name])), EXPECTED)


@pytest.mark.parametrize("work", [Finetune(personal=Pace(lr=0.1)), Evaluate(model="personal")])
def test_tensors_that_nobody_asked_for_are_refused(work: Finetune | Evaluate) -> None:
    answer = reply(metrics={})

    with pytest.raises(Refused, match="none were asked for"):
        decoded_reply(encoded_reply(NONCE, answer), expected_of(order(work), NONCE, []))


ANSWER = {"device": "ann", "weight": 7, "metrics": TRAIN}
WRONG_VALUES = {
    "of another device": {**ANSWER, "device": "bob"},
    "no weight": {**ANSWER, "weight": 0},
    "a weight of True": {**ANSWER, "weight": True},
    "half a weight": {**ANSWER, "weight": 0.5},
    "a huge weight": {**ANSWER, "weight": 2**60},
    "one more key": {**ANSWER, "personal": [1.0]},
    "another split": {**ANSWER, "metrics": {"test": TRAIN["train"]}},
    "one more measure": {**ANSWER, "metrics": {"train": {**TRAIN["train"], "row": "secret"}}},
    "a measure less": {**ANSWER, "metrics": {"train": {"examples": 7}}},
    "a text as the loss": {**ANSWER, "metrics": {"train": {**TRAIN["train"], "loss": "x"}}},
    "a list as the loss": {**ANSWER, "metrics": {"train": {**TRAIN["train"], "loss": [0.1]}}},
    "infinite loss": {**ANSWER, "metrics": {"train": {**TRAIN["train"], "loss": float("inf")}}},
    "a loss beyond float32": {**ANSWER, "metrics": {"train": {**TRAIN["train"], "loss": 1e308}}},
    "minus one example": {**ANSWER, "metrics": {"train": {**TRAIN["train"], "examples": -1}}},
    "a long reason": {"device": "ann", "reason": "x" * 3000},
    "a number as the reason": {"device": "ann", "reason": 3},
    "a list": [1],
    "nothing": None,
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_values_that_are_no_answer_are_refused(name: str) -> None:
    content = of_values({"nonce": NONCE, "answer": WRONG_VALUES[name]}, to_bytes(change()))

    with pytest.raises(Refused):
        decoded_reply(content, EXPECTED)


def test_a_reply_with_another_nonce_is_refused() -> None:
    with pytest.raises(Refused, match="another nonce"):
        decoded_reply(encoded_reply("1" * 32, reply()), EXPECTED)


def tensors_with(**entries: Any) -> bytes:
    """Return the bytes of the right change with other entries in the header."""
    content = to_bytes(change())
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size]) | entries
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


@pytest.mark.parametrize(
    "entries",
    [
        {"__metadata__": {"note": "secret"}},
        {"steps": {"dtype": "I64", "shape": [], "data_offsets": [8, 16]}},
        {"steps": {"dtype": "I64", "shape": [], "data_offsets": [-8, 0]}},
        {"steps": {"dtype": "I64", "shape": [], "data_offsets": [0, 2**63]}},
        {"steps": {"dtype": "I64", "shape": [], "data_offsets": "00"}},
        {"steps": {"dtype": "I64", "shape": [], "data_offsets": [True, False]}},
        {"steps": None},
        {"layer.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [16, 40]}},
    ],
)
def test_a_header_that_lies_about_places_is_refused(entries: dict[str, Any]) -> None:
    head = json.dumps({"nonce": NONCE, "answer": ANSWER}).encode()
    assert isinstance(decoded_reply(with_head(head, tensors_with()), EXPECTED), Reply)

    with pytest.raises(Refused):
        decoded_reply(with_head(head, tensors_with(**entries)), EXPECTED)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        b'{"nonce": NaN}',
        b'{"nonce": "a", "nonce": "b"}',
        b"\xff\xfe",
        b"1" * 5000,
    ],
    ids=["empty", "no keys", "deep", "NaN", "twice", "no text", "long number"],
)
def test_a_head_that_is_no_reply_is_refused(head: bytes) -> None:
    with pytest.raises(Refused):
        decoded_reply(with_head(head), EXPECTED)


def test_a_length_beyond_the_content_is_refused() -> None:
    for content in (b"", b"\0", (2**32 - 1).to_bytes(4, "big"), (100).to_bytes(4, "big") + b"{}"):
        with pytest.raises(Refused):
            decoded_reply(content, EXPECTED)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Return bytes with some replaced, removed, inserted, repeated or cut off."""
    result = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(result) + 1)
        match rng.randrange(5):
            case 0:
                result[at : at + 1] = rng.randbytes(1)
            case 1:
                del result[at : at + rng.randint(1, 8)]
            case 2:
                result[at:at] = rng.randbytes(rng.randint(1, 8))
            case 3:
                result[at:at] = result[at : at + rng.randint(1, 40)]
            case _:
                del result[at:]
        if not result:
            break
    return bytes(result)


def test_thousands_of_damaged_replies_are_refused_or_are_proper_replies() -> None:
    rng, whole = random.Random(5), encoded_reply(NONCE, reply())
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in change().items()}
    refused = 0
    for _ in range(4000):
        try:
            found = decoded_reply(mutated(whole, rng), EXPECTED)
        except Refused:
            refused += 1
            continue
        if isinstance(found, Reply):
            # Damage to values alone cannot be seen: it is a change of the right names, shapes and types.
            assert found.change is not None
            assert {name: (own.shape, own.dtype) for name, own in found.change.items()} == shapes
            assert all(tensor.isfinite().all() for tensor in found.change.values())
    assert 3000 < refused < 4000


def test_random_bytes_are_refused() -> None:
    rng = random.Random(6)
    for _ in range(2000):
        with pytest.raises(Refused):
            decoded_reply(rng.randbytes(rng.randrange(300)), EXPECTED)
