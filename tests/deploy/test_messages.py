"""A device takes no message of a server on trust: labels become file names, numbers become steps."""

import copy
import random
from typing import Any

import pytest

from partita.deploy.messages import BadMessage, Message, message_of
from partita.executors.codec import order_values
from partita.protocol import Evaluate, Finetune, Order, Pace, Stage, Start, Update

PACE = Pace(lr=0.1, epochs=2)
DIGEST = "0123456789abcdef" * 4


def values(work: Update | Finetune | Evaluate | None = None) -> dict[str, Any]:
    order = Order(
        stage=Stage.PERSONALIZED,
        round=7,
        device="ann",
        work=work or Update(personal=PACE, shared=PACE),
        shared={},
        start=Start(digest=DIGEST, personal=None, frozen=DIGEST),
        keep="personalized-3",
    )
    return {
        "kind": "order",
        "run": "ab" * 16,
        "computes": {"task": DIGEST},
        "counted": "personalized-6",
        "restored": ["pretrained-2"],
        "nonce": "cd" * 16,
        "cohort": 3,
        "order": order_values(order),
        "tensors": {"shared": {"digest": DIGEST, "bytes": 10}},
    }


@pytest.mark.parametrize(
    "work", [Update(personal=PACE, shared=PACE), Finetune(personal=PACE), Evaluate(model="global")]
)
def test_a_message_is_understood(work: Update | Finetune | Evaluate) -> None:
    message = message_of(values(work), "ann")

    order = message.order_with({"shared": {}})
    assert order.work == work
    assert (order.label, order.keep, order.start.frozen) == ("personalized-7", "personalized-3", DIGEST)
    assert (message.counted, message.restored, message.cohort) == ("personalized-6", ("pretrained-2",), 3)


WRONG: list[tuple[str, Any]] = [
    ("kind", "shell"),
    ("run", "../../etc"),
    ("run", 5),
    ("counted", "../../../home/x"),
    ("counted", "personalized-6/../../x"),
    ("counted", "personalized-6\n"),
    ("restored", ["x"]),
    ("restored", None),
    ("restored", [f"personalized-{number}" for number in range(1000)]),
    ("nonce", "cd"),
    ("cohort", -1),
    ("cohort", "many"),
    ("tensors", {}),
    ("tensors", {"shared": {"digest": "x", "bytes": 10}}),
    ("tensors", {"shared": {"digest": DIGEST, "bytes": 2**60}}),
    ("order.device", "bob"),
    ("order.round", "7/../../x"),
    ("order.round", -1),
    ("order.round", 1.5),
    ("order.stage", "served"),
    ("order.keep", "/etc/passwd"),
    ("order.start", {"digest": "x", "frozen": DIGEST}),
    ("order.start", {"digest": DIGEST}),
    ("order.start", {"digest": DIGEST, "frozen": DIGEST, "personal": {"v": [1.0]}}),
    ("order.counted", "x/../../../runs/x"),
    ("order.counted", 3),
    ("order.work", {"kind": "Update"}),
    ("order.work", {"kind": "Evaluate", "model": "shell", "splits": []}),
    ("order.work", {"kind": "Finetune", "personal": {"lr": 0.1, "epochs": 10**12, "steps": 0}}),
    ("order.work", {"kind": "Finetune", "personal": {"lr": "0.1", "epochs": 1, "steps": 0}}),
    ("order.work", {"kind": "Finetune", "personal": {"lr": float("nan"), "epochs": 1, "steps": 0}}),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_value_that_it_cannot_have_is_refused(key: str, value: Any) -> None:
    wrong = values()
    inner = wrong["order"] if key.startswith("order.") else wrong
    inner[key.removeprefix("order.")] = value

    with pytest.raises(BadMessage):
        message_of(wrong, "ann")


def test_messages_without_a_key_are_refused() -> None:
    for key in values():
        wrong = values()
        del wrong[key]
        with pytest.raises(BadMessage):
            message_of(wrong, "ann")


def changed_somewhere(content: Any, rng: random.Random) -> Any:
    """Return JSON values with one of them replaced."""
    other: list[Any] = [None, True, -1, 2**70, "", "x" * 50, [], {}, [[]], 1e400, "personalized-1"]
    if isinstance(content, dict) and content and rng.random() < 0.9:
        key = rng.choice(list(content))
        return {**content, key: changed_somewhere(content[key], rng)}
    if isinstance(content, list) and content and rng.random() < 0.9:
        return [changed_somewhere(content[0], rng), *content[1:]]
    return rng.choice(other)


def test_thousands_of_damaged_messages_are_refused_or_are_proper_messages() -> None:
    rng, refused = random.Random(2), 0
    for _ in range(3000):
        damaged = changed_somewhere(copy.deepcopy(values()), rng)
        try:
            message = message_of(damaged, "ann")
        except BadMessage:
            refused += 1
            continue
        assert isinstance(message, Message)
    assert refused > 1500
