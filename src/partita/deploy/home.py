"""A device's home: its personal parts, the last reply of each run, and its own results."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from partita.device.store import DiskStore
from partita.durable import PRIVATE, locked, make_private_folder, replace_file
from partita.errors import InUse
from partita.executors.replies import nonce_of
from partita.params import Params
from partita.protocol import DeviceId
from partita.sealed_tensors import about, sealed_bytes, unsealed_tensors
from partita.seals import damaged, read_json, sealed_json, sha256

logger = logging.getLogger(__name__)

_MODEL = ".model.safetensors"
"""The end of the names of files with parts of the device's own model."""


@contextmanager
def owned(home: Path) -> Iterator[None]:
    """Hold a device's home in this block: only one process at a time may.

    Raises:
        InUse: another process holds it.
    """
    make_private_folder(home)
    with locked(home) as is_ours:
        if not is_ours:
            raise InUse(f"Another process is using the home `{home}`.")
        yield


def result_lines(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Return a device's own results as text, a line for each stage and split."""
    lines: list[str] = []
    for stage, splits in results.items():
        for split, measures in splits.items():
            given = {name: value for name, value in measures.items() if value is not None}
            values = ", ".join(f"{name} {shown_measure(value)}" for name, value in given.items())
            lines.append(f"{stage}, {split}: {values}")
    return lines


def shown_measure(value: Any) -> str:
    """Return the value of a measure as text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class RunHome:
    """One run in a device's home.

    Args:
        home: the home.
        run: the id of the run.
        device: the device.
    """

    def __init__(self, home: Path, run: str, device: DeviceId) -> None:
        self.run = run
        self.folder = home / "runs" / run
        make_private_folder(self.folder.parent)
        make_private_folder(self.folder)
        self.store = DiskStore(self.folder / "personal", can_reset=False)
        self._device = device
        self._reply = self.folder / "reply.bin"
        self._state = self.folder / "state.json"
        self.state: dict[str, Any] = {"restored": [], "results": {}}
        if self._state.exists():
            self.state = read_json(self._state)

    def settle(self, counted: str | None, *, keeps: bool) -> None:
        """Keep the personal part of the last round that counted; a round that was lost is rolled back.

        Args:
            counted: the label of that round, None if there was none.
            keeps: whether a newer one may still be counted, because its round is not over.
        """
        if keeps and counted is not None:
            self.store.commit(counted, [self._device], [self._device])
        elif not keeps:
            self.store.settle(self._device, counted)

    def restore(self, labels: Sequence[str]) -> None:
        """Go back to the best round of a stage that has stopped early; each time once."""
        for label in labels:
            if label not in self.state["restored"]:
                self.store.restore(label)
                self._save(restored=[*self.state["restored"], label])

    def stored_reply(self, nonce: str) -> bytes | None:
        """Return the reply to the order with a nonce; None if that was not the last one, or it is damaged.

        The visit is made again then, with the same result.
        """
        if not self._reply.exists():
            return None
        digest, _, content = self._reply.read_bytes().partition(b"\n")
        if digest != sha256(content).encode():
            logger.warning("`%s`, the last reply, is damaged and not used.", self._reply)
            return None
        return content if nonce_of(content) == nonce else None

    def store_reply(self, content: bytes) -> None:
        """Store a reply before it is sent, so that a repeated order gets the same one."""
        replace_file(self._reply, sha256(content).encode() + b"\n" + content, mode=PRIVATE)

    def add_result(self, stage: str, metrics: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep the device's own measures of a stage's model."""
        own = {split: dict(measures) for split, measures in metrics.items()}
        self._save(results={**self.state["results"], stage: own})

    def keep_model(self, groups: Mapping[str, Params]) -> None:
        """Keep what the device's own model consists of besides its personal part: u, and its start."""
        for name, params in groups.items():
            replace_file(self.folder / f"{name}{_MODEL}", sealed_bytes(params), mode=PRIVATE)

    def model(self) -> dict[str, dict[str, Tensor]]:
        """Return what `keep_model` has kept, by group; nothing where the device was not evaluated."""
        files = self.folder.glob(f"*{_MODEL}")
        return {file.name.removesuffix(_MODEL): _tensors_in(file) for file in files}

    @property
    def results(self) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
        """The device's own measures, by stage and split."""
        return self.state["results"]

    def _save(self, **changes: Any) -> None:
        self.state = {**self.state, **changes}
        replace_file(self._state, sealed_json(self.state), mode=PRIVATE)


def _tensors_in(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a sealed file.

    Raises:
        Damaged: it is not as it was written.
    """
    content = file.read_bytes()
    try:
        if about(content) is None:
            raise ValueError("it has no sha256")
        return unsealed_tensors(content)
    except ValueError as error:
        raise damaged(file, str(error)) from None
