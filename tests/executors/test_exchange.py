"""Orders are begun with in an order of their own, and reported on in theirs."""

from typing import Any

import pytest
import torch

from partita.data.rows import SkippedRow
from partita.executors.exchange import Reports, exchanges_of, largest_first
from partita.executors.remote_errors import error_values
from partita.protocol import Evaluate, Failure, Order, Stage, Start


def order(device: str, shared: dict[str, torch.Tensor]) -> Order:
    return Order(
        stage=Stage.PERSONALIZED,
        round=0,
        device=device,
        work=Evaluate(model="global"),
        shared=shared,
        start=Start(digest="", personal={}, frozen=""),
    )


def report(**values: Any) -> dict[str, Any]:
    return {"answer": {"device": "a", "reason": "no"}, "warnings": [], "skipped": [], **values}


U = {"u": torch.zeros(1)}
ORDERS = [order(device, U) for device in "abcd"]


def test_the_largest_device_comes_first_and_equal_ones_in_the_order_of_the_orders() -> None:
    sizes = {"a": 5, "b": 7, "c": 5, "d": 9}

    assert largest_first(ORDERS, sizes.__getitem__) == [3, 1, 0, 2]
    assert largest_first(ORDERS, None) == [0, 1, 2, 3]


def test_orders_with_another_shared_part_are_another_exchange() -> None:
    other = [order("e", {"u": torch.ones(1)}), order("f", U)]

    groups = [[each.device for each in group] for group in exchanges_of([*ORDERS[:2], *other])]

    assert groups == [["a", "b"], ["e"], ["f"]]


def test_reports_are_logged_in_the_order_of_the_orders_as_far_as_the_first_exception() -> None:
    reports, logged = Reports(ORDERS), list[Any]()
    row = {"file": "f", "row": 1, "device": "a", "reason": "empty"}

    assert reports.add(3, report(error=error_values(ValueError("of d")), warnings=["w"])) is None
    assert reports.add(1, report(error=error_values(KeyError("of b")), warnings=["w"])) is None
    assert reports.add(0, report(skipped=[row])) == Failure(device="a", reason="no")
    reports.log(lambda warning, device: logged.append((warning, device)), logged.append)

    assert reports.end == 1
    assert logged == [SkippedRow(**row), ("w", "b")]
    with pytest.raises(KeyError, match="of b"):
        reports.raise_first()
