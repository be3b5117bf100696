"""Orders, answers and sums survive the way through JSON."""

import json

import pytest
import torch

from partita.executors.codec import (
    Orders,
    answer_of,
    answer_values,
    order_of,
    order_values,
    orders_values,
    totals_of,
    totals_values,
)
from partita.mean import WeightedMean
from partita.protocol import Evaluate, Failure, Finetune, Order, Pace, Reply, Stage, Start, Update
from small import same_bits

PACE = Pace(lr=0.1, epochs=2)


@pytest.mark.parametrize(
    "work",
    [
        Update(personal=PACE, shared=Pace(lr=1 / 3, steps=4)),
        Finetune(personal=PACE),
        Evaluate(model="personal", splits=("train", "test")),
    ],
)
def test_an_order_comes_back_with_the_tensors_it_is_given(work: Update | Finetune | Evaluate) -> None:
    shared, personal = {"u": torch.ones(2)}, {"v": torch.zeros(1)}
    start = Start(digest="d", personal=personal, frozen="f", pretrained=None)
    order = Order(
        stage=Stage.PERSONALIZED,
        round=3,
        device='ü"\n',
        work=work,
        shared=shared,
        start=start,
        keep="x-1",
        single=True,
    )

    values = json.loads(json.dumps(order_values(order)))

    assert order_of(values, shared, Start(digest="", personal=personal, frozen="")) == order


def test_an_answer_comes_back_to_the_bit() -> None:
    measures = {"loss": 1 / 3, "examples": 7, "accuracy": None, "reason": "none"}
    reply = Reply(device="a", weight=2**70, change=None, metrics={"train": measures})
    failure = Failure(device="b", reason="It cannot.")

    for answer in (reply, failure):
        assert answer_of(json.loads(json.dumps(answer_values(answer)))) == answer


def test_sums_come_back_to_the_bit() -> None:
    like = {"u": torch.zeros(3), "count": torch.tensor(0)}
    mean = WeightedMean(like)
    mean.add("b", {"u": torch.tensor([1e30, 0.1, -2.0]), "count": torch.tensor(4)}, weight=2**40)
    values, tensors = totals_values(mean.totals())

    again = WeightedMean(like)
    again.merge(totals_of(json.loads(json.dumps(values)), tensors))

    assert same_bits(again.value(), mean.value())


def test_what_many_orders_have_in_common_is_sent_once() -> None:
    shared = {"u": torch.ones(2)}
    starts = {digest: Start(digest=digest, personal={"v": torch.zeros(1)}, frozen="f") for digest in "xy"}
    works = [Update(personal=PACE, shared=PACE), Evaluate(model="global")]
    orders = [
        Order(
            stage=Stage.PERSONALIZED,
            round=3,
            device=f"{digest} {number}",
            work=work,
            shared=shared,
            start=starts[digest],
            counted=None if number else "personalized-1",
            keep="x-1",
            single=number == 2,
        )
        for number in range(3)
        for digest in "xy"
        for work in works
    ]

    values = json.loads(json.dumps(orders_values(orders)))
    again = Orders(values, shared, lambda each: starts[each["start"]["digest"]])

    assert len(values["common"]) == 8
    assert [again[number] for number in range(12)] == orders
