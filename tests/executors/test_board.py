"""Orders on the board are taken once each, and it shows what each process is at."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partita.executors.board import Board


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board()
    yield board
    board.close()


def taken(board: Board, worker: int = 0) -> list[int]:
    """Take all orders that there are."""
    return list(iter(lambda: board.take(worker), None))


def forked(work: Callable[[], object]) -> int:
    """Do some work in another process and return its number."""
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    return child


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_each_order_is_taken_by_one_process_in_the_order_given(board: Board, tmp_path: Path) -> None:
    numbers = [(7 * place) % 8000 for place in range(8000)]
    board.put(numbers, end=8000)

    def take(child: int) -> None:
        (tmp_path / str(child)).write_text(" ".join(map(str, taken(board, child))))

    children = [forked(lambda child=child: take(child)) for child in range(3)]
    for child in children:
        os.waitpid(child, 0)

    shares = [[int(each) for each in path.read_text().split()] for path in tmp_path.iterdir()]
    places = {number: place for place, number in enumerate(numbers)}
    assert sorted(number for share in shares for number in share) == list(range(8000))
    for share in shares:
        assert share == sorted(share, key=places.__getitem__)


def test_of_many_orders_each_worker_begins_with_its_own_share(board: Board) -> None:
    board.put(range(40), end=40, workers=2)

    assert [board.take(0), board.take(1), board.take(1), board.take(0)] == [0, 20, 21, 1]
    assert taken(board, 1) == [*range(22, 40), *range(2, 20)]
    assert board.take(0) is None


def test_few_orders_are_taken_in_one_order_by_all_workers(board: Board) -> None:
    board.put(range(6), end=6, workers=3)

    assert [board.take(worker) for worker in (2, 0, 1, 2, 2, 1, 0)] == [0, 1, 2, 3, 4, 5, None]


@pytest.mark.parametrize("workers", [1, 3, 17, 100])
def test_any_number_of_workers_takes_each_order_once(board: Board, workers: int) -> None:
    board.put(range(2000), end=2000, workers=workers)

    taken_by = [board.take(number % workers) for number in range(2000)]

    assert sorted(filter(lambda each: each is not None, taken_by)) == list(range(2000))
    assert board.take(0) is None


def test_orders_that_nobody_has_taken_are_gone_with_the_next_ones(board: Board) -> None:
    board.put([5, 3, 4], end=6)
    assert board.take(0) == 5

    board.put([2, 0], end=3)

    assert taken(board) == [2, 0]
    assert board.end == 3


def test_of_more_orders_than_there_is_room_for_the_first_ones_can_be_taken(board: Board) -> None:
    board.put(range(100_000), end=100_000)

    first = taken(board)

    assert first == list(range(len(first)))
    assert len(first) >= 1000


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_order_that_a_process_is_at_is_known_after_its_end(board: Board) -> None:
    for worker in (0, 1, 4095):
        board.leave(worker)
    before = time.monotonic()

    os.waitpid(forked(lambda: board.begin(1, 70_000)), 0)

    assert board.order_of(1) == 70_000
    assert before <= board.since(1) <= time.monotonic()
    assert (board.order_of(0), board.order_of(4095)) == (None, None)

    before = time.monotonic()
    board.leave(1)

    assert board.order_of(1) is None
    assert before <= board.since(1) <= time.monotonic()
