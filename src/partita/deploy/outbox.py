"""The record of all that has left a device: a line for every message, written before it is sent.

Each line has a digest of itself and of the line before it, so that a line cannot be changed, left out or put
elsewhere without notice. Only the end can be cut off: who wants to notice that keeps the last digest.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from partita.durable import append_file, naming
from partita.errors import ConfigError
from partita.params import to_bytes
from partita.protocol import Failure, Order, Reply

FILE = "outbox.jsonl"
_CHAIN = "chain"
_FIRST = "0" * 64
"""Takes the place of the digest of the line before the first one."""


class Outbox:
    """The record in a device's home; one process at a time writes it.

    Raises:
        ConfigError: the last line is not as it was written.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / FILE
        self._drop_unfinished()
        self.number, self.last = 0, _FIRST
        for self.number, line in enumerate(read_lines(home), start=1):
            self.last = line[_CHAIN]

    def write(self, values: Mapping[str, Any]) -> None:
        """Write a line, and wait until it is on disk."""
        line = {"number": self.number + 1, "time": datetime.now(UTC).isoformat(timespec="seconds"), **values}
        chain = _chain(self.last, line)
        append_file(self._path, json.dumps({**line, _CHAIN: chain}).encode() + b"\n")
        self.number, self.last = self.number + 1, chain

    def _drop_unfinished(self) -> None:
        """Remove the end of a line that a crash has cut off: its message was not sent."""
        if not self._path.exists():
            return
        content = self._path.read_bytes()
        if content and not content.endswith(b"\n"):
            with naming(self._path), self._path.open("r+b") as file:
                file.truncate(content.rfind(b"\n") + 1)


def about_content(content: bytes) -> dict[str, Any]:
    """Return what the record says about the bytes of a message."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def about_reply(order: Order, answer: Reply | Failure, content: bytes) -> dict[str, Any]:
    """Return what the record says about a reply: every tensor, every measure, and the size of all."""
    values: dict[str, Any] = {
        "stage": order.stage.value,
        "round": order.round,
        "purpose": type(order.work).__name__.lower(),
        **about_content(content),
    }
    if isinstance(answer, Failure):
        return {**values, "reason": answer.reason, "tensors": [], "metrics": {}}
    tensors = [
        {
            "name": name,
            "shape": list(tensor.shape),
            "bytes": tensor.nbytes,
            "sha256": hashlib.sha256(to_bytes({name: tensor})).hexdigest(),
        }
        for name, tensor in (answer.change or {}).items()
    ]
    metrics = {split: dict(measures) for split, measures in answer.metrics.items()}
    return {**values, "weight": answer.weight, "tensors": tensors, "metrics": metrics}


def read_lines(home: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a record; none where there is no record.

    Raises:
        ConfigError: a line cannot be read.
    """
    path = home / FILE
    if not path.exists():
        return
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, text in enumerate(file, start=1):
            try:
                line = json.loads(text)
                line[_CHAIN]
            except (ValueError, TypeError, KeyError):
                raise ConfigError(f"Line {number} of `{path}` is not as it was written.") from None
            yield line


def verify(home: Path) -> tuple[int, str]:
    """Return the number of lines of a record and its last digest, after checking all of them.

    Raises:
        ConfigError: a line was changed, left out or put elsewhere.
    """
    number, last = 0, _FIRST
    for number, line in enumerate(read_lines(home), start=1):
        values = {name: value for name, value in line.items() if name != _CHAIN}
        if line[_CHAIN] != _chain(last, values) or line.get("number") != number:
            raise ConfigError(f"Line {number} of `{home / FILE}` is not as it was written.")
        last = line[_CHAIN]
    return number, last


def _chain(before: str, line: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{before}\n{json.dumps(line)}".encode()).hexdigest()
