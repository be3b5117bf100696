"""The home of a device: what is damaged in it is not used."""

from pathlib import Path

import pytest
import torch

from partita.deploy.home import RunHome
from partita.errors import Damaged
from partita.executors.replies import encoded_reply
from partita.protocol import Failure


def flipped(file: Path) -> None:
    """Flip the last bit of a file."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_a_reply_is_stored_until_it_is_damaged(tmp_path: Path) -> None:
    home = RunHome(tmp_path, "run", "ann")
    reply = encoded_reply("0123", Failure(device="ann", reason="no battery"))

    home.store_reply(reply)

    assert home.stored_reply("0123") == reply
    assert home.stored_reply("4567") is None
    flipped(home.folder / "reply.bin")
    assert home.stored_reply("0123") is None


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    RunHome(tmp_path, "run", "ann").add_result("personalized", {"test": {"accuracy": 0.25}})
    state = tmp_path / "runs/run/state.json"

    assert RunHome(tmp_path, "run", "ann").results == {"personalized": {"test": {"accuracy": 0.25}}}
    state.write_text(state.read_text().replace("0.25", "0.75"))
    with pytest.raises(Damaged, match=r"state.json` is damaged: its values are not those of its sha256"):
        RunHome(tmp_path, "run", "ann")


def test_a_damaged_model_is_refused(tmp_path: Path) -> None:
    home = RunHome(tmp_path, "run", "ann")
    home.keep_model({"shared": {"u": torch.ones(2)}})

    assert home.model()["shared"]["u"].tolist() == [1.0, 1.0]
    flipped(home.folder / "shared.model.safetensors")
    with pytest.raises(Damaged, match="shared.model.safetensors` is damaged"):
        home.model()
