"""The files of a personal part: the device's own, and the copy of what it kept after the best round."""

import contextlib
from pathlib import Path

from partita.sealed_tensors import about
from partita.seals import damaged, sha256

SUFFIX, COPY = ".safetensors", ".best"
DEVICE, ROUND = "device", "round"
"""The texts about itself in the seal of a personal part."""


def is_from(label: str, first: str) -> bool:
    """Return whether a label is that of a round, or of a later one of the same stage.

    >>> is_from("personalized-12", "personalized-7"), is_from("finetuned-12", "personalized-7")
    (True, False)
    """
    stage, _, round = label.rstrip().rpartition("-")
    wanted, _, beginning = first.rpartition("-")
    return stage == wanted and round.isdigit() and beginning.isdigit() and int(round) >= int(beginning)


def about_file(path: Path) -> dict[str, str] | None:
    """Return what the header of a safetensors file says about it."""
    with path.open("rb") as file:
        head = file.read(8)
        return about(head + file.read(min(int.from_bytes(head, "little"), path.stat().st_size)))


def copy_bytes(label: str, content: bytes) -> bytes:
    """Return the content of a preserved copy: the label and a digest in its first line, then the file."""
    return f"{label} {sha256(content)}\n".encode() + content


def label_of_copy(copy: Path) -> str | None:
    """Return the label of a preserved copy, in its first line; None where there is no copy."""
    with contextlib.suppress(FileNotFoundError), copy.open("rb") as file:
        return file.readline().decode(errors="replace").partition(" ")[0]
    return None


def content_of_copy(copy: Path) -> bytes:
    """Return the file of which there is a preserved copy, empty where the device kept nothing."""
    head, _, content = copy.read_bytes().partition(b"\n")
    if head.decode(errors="replace").partition(" ")[2] != sha256(content):
        raise damaged(copy, "its content is not that of its sha256")
    return content
