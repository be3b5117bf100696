"""The record of what has left a device: complete, and nothing can be changed in it without notice."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from partita.deploy.outbox import FILE, Outbox, about_reply, read_lines, verify
from partita.errors import ConfigError
from partita.params import to_bytes
from partita.protocol import Failure, Finetune, Order, Pace, Reply, Stage, Start

ORDER = Order(
    stage=Stage.PERSONALIZED,
    round=4,
    device="ann",
    work=Finetune(personal=Pace(lr=0.1)),
    shared={},
    start=Start(digest="", personal=None, frozen=""),
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home with a record of five messages."""
    outbox = Outbox(tmp_path)
    for number in range(3):
        outbox.write({"purpose": "update", "bytes": number})
    again = Outbox(tmp_path)  # As after a restart.
    for number in range(2):
        again.write({"purpose": "evaluate", "bytes": number})
    return tmp_path


def lines(home: Path) -> list[str]:
    return (home / FILE).read_text().splitlines(keepends=True)


def test_a_record_goes_on_after_a_restart_and_is_whole(home: Path) -> None:
    count, last = verify(home)

    assert count == 5
    assert [line["number"] for line in read_lines(home)] == [1, 2, 3, 4, 5]
    assert last == json.loads(lines(home)[-1])["chain"]


def test_the_chain_is_the_sha256_of_the_digest_before_and_the_line(home: Path) -> None:
    first, second = (json.loads(line) for line in lines(home)[:2])
    text = json.dumps({name: value for name, value in second.items() if name != "chain"})

    assert second["chain"] == hashlib.sha256(f"{first['chain']}\n{text}".encode()).hexdigest()


@pytest.mark.parametrize("damage", ["changed", "removed", "swapped", "repeated", "garbage"])
def test_every_change_but_a_cut_end_is_noticed(home: Path, damage: str) -> None:
    text = lines(home)
    match damage:
        case "changed":
            text[1] = text[1].replace('"bytes": 1', '"bytes": 7')
        case "removed":
            del text[1]
        case "swapped":
            text[1], text[2] = text[2], text[1]
        case "repeated":
            text.insert(2, text[1])
        case _:
            text[1] = "x\n"
    (home / FILE).write_text("".join(text))

    with pytest.raises(ConfigError, match=r"Line [23] of .* is not as it was written"):
        verify(home)


def test_half_a_line_after_a_crash_is_removed_since_its_message_was_not_sent(home: Path) -> None:
    whole = (home / FILE).read_bytes()
    (home / FILE).write_bytes(whole + b'{"number": 6, "purp')

    Outbox(home).write({"purpose": "update"})

    assert verify(home)[0] == 6
    assert (home / FILE).read_bytes().startswith(whole)


def test_a_line_has_every_tensor_and_every_measure() -> None:
    change = {"u": torch.ones(2, 2), "steps": torch.tensor(3)}
    reply = Reply(device="ann", weight=6, change=change, metrics={"train": {"loss": 0.5, "examples": 6}})

    about = about_reply(ORDER, reply, b"12345")

    assert about["tensors"] == [
        {
            "name": name,
            "shape": list(tensor.shape),
            "bytes": tensor.nbytes,
            "sha256": hashlib.sha256(to_bytes({name: tensor})).hexdigest(),
        }
        for name, tensor in change.items()
    ]
    assert about["metrics"] == {"train": {"loss": 0.5, "examples": 6}}
    assert (about["stage"], about["round"], about["purpose"]) == ("personalized", 4, "finetune")
    assert (about["weight"], about["bytes"]) == (6, 5)


def test_a_failure_is_recorded_with_its_reason() -> None:
    about = about_reply(ORDER, Failure(device="ann", reason="No rows."), b"1")

    assert (about["reason"], about["tensors"], about["metrics"]) == ("No rows.", [], {})


def test_an_empty_record_is_whole(tmp_path: Path) -> None:
    assert verify(tmp_path)[0] == 0
