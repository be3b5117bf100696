"""Orders, answers and sums as JSON values and named tensors, for executors that send them to other processes.

Nothing here is pickled. The tensors of an order (u, and what devices start with) are the same for many
devices, so they travel apart from it, and a decoded order is given them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from partita.mean import Totals
from partita.params import Params
from partita.protocol import Evaluate, Failure, Finetune, Order, Pace, Reply, Stage, Start, Update

Values = Mapping[str, Any]
"""Strings, numbers, booleans, None, and lists and mappings of them."""


def order_values(order: Order) -> dict[str, Any]:
    """Return an order without its tensors."""
    return {
        "stage": order.stage.value,
        "round": order.round,
        "device": order.device,
        "work": {"kind": type(order.work).__name__, **asdict(order.work)},
        "start": {"digest": order.start.digest, "frozen": order.start.frozen},
        "counted": order.counted,
        "keep": order.keep,
        "single": order.single,
    }


def order_of(values: Values, shared: Params, start: Start) -> Order:
    """Return the order with these values; of its start, `start` has the tensors that the device lacks."""
    return Order(
        stage=Stage(values["stage"]),
        round=values["round"],
        device=values["device"],
        work=_work(values["work"]),
        shared=shared,
        start=replace(start, **values["start"]),
        counted=values["counted"],
        keep=values["keep"],
        single=values["single"],
    )


def orders_values(orders: Sequence[Order]) -> dict[str, Any]:
    """Return orders without their tensors; what many of them have in common is in it once."""
    common: list[dict[str, Any]] = []
    places: dict[tuple[Any, ...], int] = {}
    rows: list[list[Any]] = []
    for order in orders:
        key = (order.stage, order.round, id(order.work), id(order.start), order.keep, order.single)
        if key not in places:
            places[key] = len(common)
            common.append(order_values(order))
        rows.append([order.device, order.counted, places[key]])
    return {"common": common, "orders": rows}


class Orders:
    """The orders with some values, which are made when they are needed.

    Args:
        values: what `orders_values` has returned.
        shared: the shared part of all of them.
        start: returns the tensors that devices start with, given the values of an order.
    """

    def __init__(self, values: Values, shared: Params, start: Callable[[Values], Start]) -> None:
        self._common = [order_of(each, shared, start(each)) for each in values["common"]]
        self._rows = values["orders"]

    def __getitem__(self, number: int) -> Order:
        """Return the order with a number, from 0."""
        device, counted, place = self._rows[number]
        like = self._common[place]
        return Order(  # `replace` takes longer, and visits may be short.
            stage=like.stage,
            round=like.round,
            device=device,
            work=like.work,
            shared=like.shared,
            start=like.start,
            counted=counted,
            keep=like.keep,
            single=like.single,
        )


def answer_values(answer: Reply | Failure) -> dict[str, Any]:
    """Return an answer without its change."""
    if isinstance(answer, Failure):
        return asdict(answer)
    metrics = {split: dict(measures) for split, measures in answer.metrics.items()}
    return {"device": answer.device, "weight": answer.weight, "metrics": metrics}


def answer_of(values: Values, change: Params | None = None) -> Reply | Failure:
    """Return the answer with these values and this change."""
    return Failure(**values) if "reason" in values else Reply(change=change, **values)


def totals_values(totals: Totals) -> tuple[dict[str, Any], dict[str, Params]]:
    """Return sums as values, and their two groups of tensors."""
    values = {"weight": totals.weight, "bounds": dict(totals.bounds), "lowest": totals.lowest}
    return values, {"limbs": totals.limbs, "whole": totals.whole}


def totals_of(values: Values, tensors: Mapping[str, Params]) -> Totals:
    """Return the sums with these values and tensors."""
    return Totals(
        weight=values["weight"],
        limbs=tensors["limbs"],
        bounds=values["bounds"],
        lowest=values["lowest"],
        whole=tensors["whole"],
    )


def _work(values: Values) -> Update | Finetune | Evaluate:
    """Return the work with these values."""
    match values["kind"]:
        case "Update":
            return Update(personal=Pace(**values["personal"]), shared=Pace(**values["shared"]))
        case "Finetune":
            return Finetune(personal=Pace(**values["personal"]))
        case _:
            return Evaluate(model=values["model"], splits=tuple(values["splits"]))
