"""A round of the server, with scripted replies."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch

from partita import Adam, Averaging, Stage
from partita.mean import WeightedMean
from partita.protocol import Evaluate, Failure, Order, Pace, Reply, Start, Tally, Update
from partita.server.round import Outcome, Server, State, ask

WORK = Update(personal=Pace(lr=0.1), shared=Pace(lr=0.1))
NO_WEIGHTS: list[Any] = [0, -3, 2.5, 2.0, float("nan"), True, "3", None]


class Scripted:
    """Answers orders with a fixed reply for each device, then with tallies."""

    def __init__(self, answers: dict[str, Reply | Failure], *tallies: Tally) -> None:
        self.answers = answers
        self.tallies = tallies

    def devices(self) -> Sequence[str]:
        return list(self.answers)

    def ask(self, orders: Iterable[Order]) -> Iterator[Reply | Tally | Failure]:
        yield from (self.answers[order.device] for order in reversed(list(orders)))
        yield from self.tallies

    def close(self, label: str, counted: Sequence[str], asked: Sequence[str]) -> None:
        raise AssertionError("A round is closed by who commits it.")


def reply(device: str, change: float, weight: int = 1, **others: float) -> Reply:
    tensors = {"u": torch.tensor([change])} | {name: torch.tensor(value) for name, value in others.items()}
    metrics = {"train": {"loss": change, "examples": weight}}
    return Reply(device=device, weight=weight, change=tensors, metrics=metrics)


def orders(devices: str, shared: dict[str, torch.Tensor], work: Update | Evaluate = WORK) -> list[Order]:
    start = Start(digest="", personal={}, frozen="")
    return [
        Order(stage=Stage.PERSONALIZED, round=0, device=d, work=work, shared=shared, start=start)
        for d in devices
    ]


def run_round(
    state: State, orders: Sequence[Order], executor: Scripted, server: Server
) -> tuple[State, Outcome]:
    """One round as the training loop runs it."""
    mean = WeightedMean(state.shared)
    outcome = ask(orders, executor, mean)
    if not mean.weight:
        return state, outcome
    return server.step(state, mean.value(), heard=len(outcome.heard)), outcome


def test_the_server_takes_the_weighted_mean_over_replies() -> None:
    answers = {"a": reply("a", 1.0, 1), "b": Failure(device="b", reason="No."), "c": reply("c", 5.0, 3)}
    server = Server(optimizer=Averaging())
    state = server.begin({"u": torch.tensor([10.0])})

    state, outcome = run_round(state, orders("cba", dict(state.shared)), Scripted(answers), server)

    assert state.shared["u"].item() == 14.0
    assert outcome.asked == ["c", "b", "a"]
    assert outcome.heard == ["c", "a"]
    assert outcome.failed == {"b": "No."}
    assert outcome.mean("loss") == 4.0
    assert (outcome.bytes_down, outcome.bytes_up) == (12, 8)


def tally(*replies: Reply, shared: dict[str, torch.Tensor]) -> Tally:
    mean = WeightedMean(shared)
    for each in replies:
        mean.add(each.device, each.change or {}, each.weight)
    return Tally(devices=[each.device for each in replies], totals=mean.totals())


def test_sums_that_an_executor_has_made_give_the_mean_of_the_changes_in_them() -> None:
    full = {"a": reply("a", 1.0, 1), "b": reply("b", 0.3, 2), "c": reply("c", 5.0, 3)}
    without = {device: replace(each, change=None) for device, each in full.items()}
    server = Server(optimizer=Averaging())
    state = server.begin({"u": torch.tensor([10.0])})
    shared = dict(state.shared)
    sums = [tally(full["c"], full["a"], shared=shared), tally(full["b"], shared=shared)]

    one, plain = run_round(state, orders("abc", shared), Scripted({**full}), server)
    two, summed = run_round(state, orders("abc", shared), Scripted({**without}, *sums), server)
    mixed, both = run_round(
        state, orders("abc", shared), Scripted({**without, "b": full["b"]}, sums[0]), server
    )

    assert one.shared["u"].item() == two.shared["u"].item() == mixed.shared["u"].item()
    assert plain.heard == summed.heard == both.heard == ["a", "b", "c"]
    assert plain.bytes_up == summed.bytes_up == both.bytes_up == 12


def test_a_sum_must_be_of_devices_that_replied_each_once() -> None:
    shared = {"u": torch.zeros(1)}
    whole, other = reply("a", 1.0), reply("b", 1.0)
    sums = tally(whole, other, shared=shared)
    lacking: dict[str, Reply | Failure] = {"a": replace(whole, change=None)}

    for answers, more in [(lacking, [sums]), ({"a": whole}, [tally(whole, shared=shared)])]:
        with pytest.raises(ValueError, match="not those of the replies"):
            ask(orders("a", shared), Scripted(answers, *more), WeightedMean(shared))
    with pytest.raises(ValueError, match="did not ask for any"):
        ask(orders("a", shared, Evaluate(model="global")), Scripted({**lacking}, sums))
    with pytest.raises(ValueError, match="names and sizes"):
        ask(orders("a", shared), Scripted(lacking, sums), WeightedMean({"w": torch.zeros(2)}))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (reply("b", float("nan")), "finite"),
        (reply("b", float("-inf")), "finite"),
        (reply("b", 1.0, personal=3.0), "unknown \\['personal'\\]"),
        (replace(reply("b", 1.0), change={}), "missing \\['u'\\]"),
        (replace(reply("b", 1.0), change={"u": torch.ones(2)}), "the shape \\(1,\\), got \\(2,\\)"),
        (replace(reply("b", 1.0), change={"u": torch.ones(1, dtype=torch.int64)}), "floating-point type"),
        (replace(reply("b", 1.0), change={"u": torch.ones(1, dtype=torch.complex64)}), "floating-point type"),
        (replace(reply("b", 1.0), metrics={"train": {"loss": float("nan")}}), "`loss` of the split `train`"),
        (Reply(device="b", weight=1, change=None, metrics={}), "no change"),
        *((replace(reply("b", 1.0), weight=weight), "whole number, at least 1") for weight in NO_WEIGHTS),
    ],
)
def test_a_change_that_cannot_be_added_is_a_failure_of_its_device(bad: Reply, words: str) -> None:
    server = Server(optimizer=Averaging())
    state = server.begin({"u": torch.tensor([0.0])})

    after, outcome = run_round(
        state, orders("ab", dict(state.shared)), Scripted({"a": reply("a", 2.0), "b": bad}), server
    )

    assert after.shared["u"].item() == 2.0
    assert outcome.heard == ["a"]
    with pytest.raises(ValueError, match=words):
        raise ValueError(outcome.failed["b"])


def test_an_integer_tensor_changes_by_int64_alone() -> None:
    # As a float, a change of NaN would become an arbitrary integer.
    shared = {"u": torch.zeros(1), "seen": torch.tensor(5)}
    answers = {"a": reply("a", 1.0, seen=2), "b": reply("b", 1.0, seen=float("nan"))}

    outcome = ask(orders("ab", shared), Scripted(dict(answers)), WeightedMean(shared))

    assert outcome.heard == ["a"]
    assert outcome.failed == {"b": "The change of `seen` must have int64, got torch.float32."}


class Silent(Scripted):
    """Answers for some of the devices alone."""

    def ask(self, orders: Iterable[Order]) -> Iterator[Reply | Tally | Failure]:
        yield from self.answers.values()


def test_a_device_without_an_answer_has_failed() -> None:
    shared = {"u": torch.zeros(1)}

    outcome = ask(orders("abc", shared), Silent({"c": reply("c", 1.0)}), WeightedMean(shared))

    assert outcome.heard == ["c"]
    assert outcome.failed == dict.fromkeys("ab", "There was no answer.")


@pytest.mark.parametrize("extra", [reply("z", 1.0), Failure(device="z", reason="No."), reply("a", 1.0)])
def test_an_answer_of_a_device_that_was_not_asked_is_refused(extra: Reply | Failure) -> None:
    shared = {"u": torch.zeros(1)}

    with pytest.raises(ValueError, match="has answered twice, or without being asked"):
        ask(orders("a", shared), Silent({"first": reply("a", 1.0), "then": extra}), WeightedMean(shared))


@pytest.mark.parametrize("arrival", list(permutations("abcde")))
def test_the_first_successes_in_the_order_of_the_orders_count(arrival: tuple[str, ...]) -> None:
    # Asked are c, a, d, b, e, of which 3 count: a failed, so b takes its place, and e is left out.
    answers: dict[str, Reply | Failure] = {
        device: reply(device, change, weight)
        for device, change, weight in (("b", 4.0, 2), ("c", 1.0, 1), ("d", 2.0, 1), ("e", 1e9, 1))
    }
    answers["a"] = Failure(device="a", reason="No.")
    shared = {"u": torch.zeros(1)}
    asked = [replace(order, single=order.device in "be") for order in orders("cadbe", shared)]
    mean = WeightedMean(shared)

    outcome = ask(asked, Silent({device: answers[device] for device in arrival}), mean, wanted=3)

    # (1 x 1 + 1 x 2 + 2 x 4) / 4
    assert mean.value()["u"].item() == 2.75
    assert outcome.heard == ["c", "d", "b"]
    assert outcome.left_out == ["e"]
    assert outcome.failed == {"a": "No."}
    assert outcome.mean("loss") == 2.75
    assert (outcome.bytes_down, outcome.bytes_up) == (20, 16)


def test_a_further_device_that_cannot_be_used_is_replaced_too() -> None:
    answers: dict[str, Reply | Failure] = {
        "a": replace(reply("a", 1.0), change=None),
        "b": reply("b", float("nan")),
        "c": replace(reply("c", 1.0), change=None),
        "d": reply("d", 4.0),
    }
    shared = {"u": torch.zeros(1)}
    asked = [replace(order, single=order.device != "a") for order in orders("abcd", shared)]
    mean = WeightedMean(shared)

    outcome = ask(asked, Scripted(answers), mean, wanted=1)

    assert mean.value()["u"].item() == 4.0
    assert outcome.heard == ["d"]
    assert list(outcome.failed) == ["a", "b", "c"]


def test_changes_that_the_server_needs_singly_must_not_be_added_up() -> None:
    shared = {"u": torch.zeros(1)}
    asked = [replace(order, single=True) for order in orders("ab", shared)]
    whole = {device: reply(device, 1.0) for device in "ab"}
    sums = tally(*whole.values(), shared=shared)
    without: dict[str, Any] = {device: replace(each, change=None) for device, each in whole.items()}

    with pytest.raises(ValueError, match="ask for singly"):
        ask(asked, Scripted(without, sums), WeightedMean(shared))


def test_a_round_without_replies_changes_nothing() -> None:
    server = Server(optimizer=Adam(lr=0.1))
    state = server.begin({"u": torch.tensor([0.0])})

    after, outcome = run_round(
        state, orders("a", dict(state.shared)), Scripted({"a": Failure(device="a", reason="Off.")}), server
    )

    assert after is state
    assert outcome.mean("loss") is None


def test_tensors_in_an_evaluation_are_refused() -> None:
    work = Evaluate(model="personal")

    outcome = ask(orders("a", {}, work), Scripted({"a": reply("a", 1.0)}))

    assert outcome.heard == []
    assert "did not ask for any" in outcome.failed["a"]


def test_sent_tensors_are_aggregated_by_their_own_rules() -> None:
    # Two of four devices reply, with changes of 1 and 3 in each of two tensors: their mean is 2. One tensor takes
    # the mean itself, the other the sum of the changes over all four devices, (1 + 3) / 4 = 1.
    rules = {"mean": lambda replied, devices: 1.0, "all": lambda replied, devices: replied / devices}
    server = Server(optimizer=Averaging(lr=0.5), sent=rules, devices=4)
    shared = {"u": torch.tensor([0.0]), "mean": torch.tensor(10.0), "all": torch.tensor(10.0)}
    answers = {d: reply(d, change, mean=change, all=change) for d, change in (("a", 1.0), ("b", 3.0))}

    state, _ = run_round(server.begin(shared), orders("ab", shared), Scripted(dict(answers)), server)

    assert {name: tensor.item() for name, tensor in state.shared.items()} == {
        "u": 1.0,
        "mean": 12.0,
        "all": 11.0,
    }
    assert not state.optimizer


def test_buffers_are_averaged_without_the_optimizer() -> None:
    # The mean change is 2; Adam's first step on u has length lr = 1/8, the buffers take the mean itself.
    server = Server(optimizer=Adam(lr=0.125), buffers=frozenset({"running"}))
    shared = {"u": torch.tensor([0.0]), "running": torch.tensor(1.0), "seen": torch.tensor(5)}
    state = server.begin(shared)
    answers = {
        "a": reply("a", 1.0, running=3.0, seen=7),
        "b": reply("b", 3.0, running=1.0, seen=9),
    }

    state, _ = run_round(state, orders("ba", shared), Scripted(dict(answers)), server)

    assert state.shared["u"].item() == pytest.approx(0.125, rel=1e-5)
    assert state.shared["running"].item() == 3.0
    assert state.shared["seen"].item() == 12
    assert set(state.optimizer) == {"first/u", "second/u", "count"}
