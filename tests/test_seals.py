"""Seals: whatever is changed in a sealed file is noticed, and another version's file is not misread."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from partita.errors import ConfigError, Damaged
from partita.params import to_bytes
from partita.sealed_tensors import about, sealed_bytes, unsealed_tensors
from partita.seals import SCHEMA, read_json, sealed_json, sealed_text, sha256, unsealed_text

VALUES: dict[str, Any] = {"round": 3, "loss": 0.1, "devices": ["Ann's", "æ"], "best": None}
TENSORS = {"w": torch.arange(3.0), "b": torch.tensor(1.5, dtype=torch.bfloat16), "n": torch.tensor([True])}


def flips(content: bytes) -> list[bytes]:
    """Return every content that differs from another in one bit."""
    flipped = []
    for place in range(len(content)):
        for bit in range(8):
            other = bytearray(content)
            other[place] ^= 1 << bit
            flipped.append(bytes(other))
    return flipped


def test_a_json_file_has_its_version_and_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(sealed_json(VALUES))

    assert read_json(path) == VALUES
    written = json.loads(path.read_bytes())
    digest = written.pop("sha256")
    assert written == {"schema": SCHEMA, **VALUES}
    assert digest == sha256(json.dumps(written).encode())


def outcome(read: Callable[[], Any]) -> Any:
    """Return what is read, or the one line of the error."""
    try:
        return read()
    except ValueError as error:
        (line,) = str(error).splitlines()
        return line


def test_every_flipped_bit_of_a_json_file_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"

    for content in flips(sealed_json(VALUES))[::7]:
        path.write_bytes(content)
        found = outcome(lambda: read_json(path))
        assert found == VALUES or found.startswith(f"`{path}` is damaged: ")


@pytest.mark.parametrize("last", [False, True])
def test_every_flipped_bit_of_a_text_file_is_noticed_or_takes_the_seal_away(
    last: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.toml"

    for content in flips(sealed_text('name = "æ"\nseed = 1\n', last=last)):
        found = outcome(lambda content=content: unsealed_text(path, content, last=last))
        assert found is None or found.startswith(f"`{path}` is damaged: ")


def test_every_flipped_bit_of_tensors_is_noticed_or_takes_the_seal_away() -> None:
    for content in flips(sealed_bytes(TENSORS, device="ann")):
        found = outcome(lambda content=content: unsealed_tensors(content))
        assert isinstance(found, str) or about(content) is None


def test_tensors_that_are_cut_or_appended_to_are_noticed() -> None:
    content = sealed_bytes(TENSORS, device="ann")

    for end in range(len(content)):
        with pytest.raises(ValueError, match="."):
            unsealed_tensors(content[:end])
    with pytest.raises(ValueError, match="not that of its sha256"):
        unsealed_tensors(content + b"\0")


def test_equal_tensors_have_equal_bytes_and_other_texts_others() -> None:
    content = sealed_bytes(TENSORS, device="ann", round="a")

    assert content == sealed_bytes(
        {name: TENSORS[name] for name in reversed(TENSORS)}, device="ann", round="a"
    )
    assert content != sealed_bytes(TENSORS, device="bob", round="a")
    assert about(content) == {"device": "ann", "round": "a"}


def test_tensors_of_others_have_no_seal() -> None:
    content = to_bytes(TENSORS)

    assert about(content) is None
    assert unsealed_tensors(content).keys() == TENSORS.keys()


@pytest.mark.parametrize("schema", [SCHEMA + 1, None, "1"])
def test_a_file_of_another_version_is_refused_in_one_line(schema: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    values = {"schema": schema, **VALUES}
    path.write_text(json.dumps({**values, "sha256": sha256(json.dumps(values).encode())}))

    with pytest.raises(ConfigError, match="another version of Partita") as caught:
        read_json(path)

    assert not isinstance(caught.value, Damaged)
    digest = sha256(b"7\nseed = 1")
    text = f"# partita schema 7, sha256 {digest}\nseed = 1".encode()
    with pytest.raises(ConfigError, match="its schema is 7, and this version reads schema 1"):
        unsealed_text(path, text)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_what_is_not_a_json_object_is_damaged(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)

    with pytest.raises(Damaged, match="is damaged: it is not .* Restore it from a copy."):
        read_json(path)
