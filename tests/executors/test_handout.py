import threading

import pytest

from partita.executors.handout import Handout


def test_a_rank_has_two_orders_while_there_are_many_and_one_near_the_end() -> None:
    handout = Handout(range(5), ranks=2)

    # Five are left: two for rank 1. Three are left, which is more than the ranks: two for rank 2 as well.
    assert [handout.take_for(1), handout.take_for(1), handout.take_for(1)] == [0, 1, None]
    assert handout.take() == 2
    # Two are left: a rank with an order has enough.
    assert handout.reported(1) == 0
    assert handout.take_for(1) is None
    assert handout.reported(1) == 1
    assert handout.take_for(1) == 3
    assert not handout.is_empty


def test_every_order_is_taken_once_by_many_threads() -> None:
    handout, taken = Handout(range(500), ranks=4), list[int]()

    def take(rank: int) -> None:
        while handout.take_for(rank) is not None:
            taken.append(handout.reported(rank))

    threads = [threading.Thread(target=take, args=(rank,)) for rank in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(taken) == list(range(500))


def test_after_an_exception_only_the_orders_before_it_are_left() -> None:
    handout = Handout([3, 0, 2, 1], ranks=1)

    handout.keep_below(2)

    assert [handout.take(), handout.take(), handout.take()] == [0, 1, None]


def test_results_arrive_until_all_ranks_are_done_and_an_error_is_raised() -> None:
    handout = Handout([], ranks=3)
    for result in (None, (0, {"seconds": 0.0}), None, ZeroDivisionError("own")):
        handout.put(result)

    assert list(handout.rest(2)) == [(0, {"seconds": 0.0})]
    with pytest.raises(ZeroDivisionError, match="own"):
        list(handout.arrived())
