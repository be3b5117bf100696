"""The desk: each order is answered once, and late, repeated and foreign replies do not count."""

import threading

import pytest
import torch

from partita.executors.desk import Desk, Post
from partita.executors.remote import Patience, RemoteExecutor
from partita.executors.replies import Refused, encoded_reply
from partita.protocol import Failure, Order, Pace, Reply, Stage, Start, Update

PACE = Pace(lr=0.1, epochs=1)
SHARED = {"u": torch.zeros(2)}
TRAIN = {"train": {"examples": 2, "loss": 0.5, "start_loss": 0.5}}
PERSONAL = {"v": torch.ones(1)}
START = Start(digest="0" * 64, personal=PERSONAL, frozen="0" * 64)


def order(device: str) -> Order:
    work = Update(personal=PACE, shared=PACE)
    return Order(stage=Stage.PERSONALIZED, round=0, device=device, work=work, shared=SHARED, start=START)


def reply(device: str) -> Reply:
    return Reply(device=device, weight=2, change={"u": torch.ones(2)}, metrics=TRAIN)


def post_of(desk: Desk, device: str) -> Post:
    post = desk.find(device)
    assert post is not None
    return post


def answer(desk: Desk, device: str) -> bool:
    post = post_of(desk, device)
    return desk.hand_in(post, encoded_reply(post.nonce, reply(device)))


def opened(*devices: str) -> Desk:
    desk = Desk()
    desk.open([order(device) for device in devices], [], cohort=len(devices))
    return desk


def test_nonces_are_new_for_every_order_and_tensors_are_encoded_once() -> None:
    desk = opened("a", "b")
    first = [post_of(desk, device) for device in "ab"]
    desk.open([order("a"), order("b")], [], cohort=2)
    second = [post_of(desk, device) for device in "ab"]

    assert len({post.nonce for post in (*first, *second)}) == 4
    assert {group for post in second for group in post.tensors} == {"shared", "personal"}
    assert len({digest for post in second for digest in post.tensors.values()}) == 2


def test_an_order_that_is_answered_is_not_handed_out_again() -> None:
    desk = opened("a", "b")

    assert answer(desk, "a")
    assert desk.find("a") is None
    assert desk.find("b") is not None


def test_a_repeated_reply_counts_once() -> None:
    desk = opened("a")
    post = post_of(desk, "a")
    content = encoded_reply(post.nonce, reply("a"))

    assert desk.hand_in(post, content)
    assert not desk.hand_in(desk.named("a", post.nonce), content)
    assert isinstance(desk.next_answer(0), Reply)
    assert desk.next_answer(0) is None


def test_replies_at_the_same_time_count_once() -> None:
    desk = opened("a")
    post = post_of(desk, "a")
    content, counted = encoded_reply(post.nonce, reply("a")), list[bool]()
    barrier = threading.Barrier(8)

    def send() -> None:
        barrier.wait()
        counted.append(desk.hand_in(post, content))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(counted) == [False] * 7 + [True]


def test_a_late_reply_does_not_count() -> None:
    desk = opened("a")
    post = post_of(desk, "a")
    assert desk.close() == ["a"]

    with pytest.raises(Refused, match="no such order"):
        desk.named("a", post.nonce)
    with pytest.raises(Refused, match="late"):
        desk.hand_in(post, encoded_reply(post.nonce, reply("a")))
    assert desk.next_answer(0) is None


def test_no_device_can_name_the_order_of_another() -> None:
    desk = opened("a", "b")

    with pytest.raises(Refused):
        desk.named("b", post_of(desk, "a").nonce)


def test_devices_are_told_the_last_round_that_counted() -> None:
    desk = opened("a", "b")
    desk.settle("personalized-0", ["a"])
    desk.settle("personalized-1", ["a", "b"])
    desk.settle("personalized-2", ["b"])
    for _ in range(2):
        desk.restore("personalized-1")

    assert desk.told("a") == {"counted": "personalized-1", "restored": ["personalized-1"]}
    assert desk.told("b") == {"counted": "personalized-2", "restored": ["personalized-1"]}
    assert desk.told("c") == {"counted": None, "restored": ["personalized-1"]}


def executor(desk: Desk, patience: Patience) -> RemoteExecutor:
    return RemoteExecutor(desk, ["a", "b", "c"], [], patience)


def test_the_executor_waits_for_every_device_without_a_deadline() -> None:
    desk, answers = Desk(), list[object]()
    orders = [order(device) for device in "abc"]
    thread = threading.Thread(target=lambda: answers.extend(executor(desk, Patience()).ask(orders)))
    thread.start()
    for device in "cab":
        while desk.find(device) is None:
            pass
        assert answer(desk, device)
    thread.join()

    assert [own.device for own in answers] == ["c", "a", "b"]


def test_at_the_deadline_silent_devices_have_failed_if_enough_have_replied() -> None:
    desk, answers = Desk(), list[object]()
    orders = [order(device) for device in "abc"]
    patience = Patience(deadline=0.05, min_devices=2)
    thread = threading.Thread(target=lambda: answers.extend(executor(desk, patience).ask(orders)))
    thread.start()
    for device in "ba":
        while desk.find(device) is None:
            pass
        thread.join(0.1)  # Longer than the deadline: with one reply the round goes on.
        assert thread.is_alive()
        answer(desk, device)
    thread.join()

    assert [own.device for own in answers] == ["b", "a", "c"]
    assert answers[2] == Failure(device="c", reason="There was no reply in 0.05 seconds.")


@pytest.mark.parametrize("settings", [{"deadline": -1.0}, {"deadline": float("inf")}, {"min_devices": 0}])
def test_patience_that_cannot_be_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Patience(**settings)
