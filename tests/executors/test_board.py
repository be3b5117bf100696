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


def taken(board: Board) -> list[int]:
    """Take all orders that there are."""
    return list(iter(board.take, None))


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
        (tmp_path / str(child)).write_text(" ".join(map(str, taken(board))))

    children = [forked(lambda child=child: take(child)) for child in range(3)]
    for child in children:
        os.waitpid(child, 0)

    shares = [[int(each) for each in path.read_text().split()] for path in tmp_path.iterdir()]
    places = {number: place for place, number in enumerate(numbers)}
    assert sorted(number for share in shares for number in share) == list(range(8000))
    for share in shares:
        assert share == sorted(share, key=places.__getitem__)


def test_orders_that_nobody_has_taken_are_gone_with_the_next_ones(board: Board) -> None:
    board.put([5, 3, 4], end=6)
    assert board.take() == 5

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
    assert before <= board.begun(1) <= time.monotonic()
    assert (board.order_of(0), board.order_of(4095)) == (None, None)
    board.leave(1)
    assert board.order_of(1) is None
