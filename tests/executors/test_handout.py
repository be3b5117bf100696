import threading

import pytest
import torch

from partita.executors.handout import Handout
from partita.protocol import Evaluate, Failure, Order, Stage, Start


def orders(count: int) -> list[Order]:
    start = Start(digest="", personal={}, frozen="")
    work, shared = Evaluate(model="global"), {"u": torch.zeros(1)}
    return [
        Order(stage=Stage.PRETRAINED, round=0, device=f"d{i}", work=work, shared=shared, start=start)
        for i in range(count)
    ]


def test_a_rank_has_two_orders_while_there_are_many_and_one_near_the_end() -> None:
    handout = Handout(orders(5), ranks=2)

    # Five are left: two for rank 1. Three are left, which is more than the ranks: two for rank 2 as well.
    first = [handout.take_for(1), handout.take_for(1), handout.take_for(1)]
    assert [order and order.device for order in first] == ["d0", "d1", None]
    assert handout.take() is not None
    # Two are left: a rank with an order has enough.
    handout.answered(1, "d0")
    assert handout.take_for(1) is None
    handout.answered(1, "d1")
    assert handout.take_for(1) is not None
    assert not handout.is_empty


def test_every_order_is_taken_once_by_many_threads() -> None:
    handout, taken = Handout(orders(500), ranks=4), list[str]()

    def take(rank: int) -> None:
        while (order := handout.take_for(rank)) is not None:
            taken.append(handout.answered(rank, order.device).device)

    threads = [threading.Thread(target=take, args=(rank,)) for rank in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(taken) == sorted(order.device for order in orders(500))


def test_results_arrive_until_all_ranks_are_done_and_an_error_is_raised() -> None:
    handout, failure = Handout([], ranks=3), Failure(device="a", reason="x")
    for result in (None, failure, None, ZeroDivisionError("own")):
        handout.put(result)

    assert list(handout.rest(2)) == [failure]
    with pytest.raises(ZeroDivisionError, match="own"):
        list(handout.arrived())
