"""Where personal parts are kept between visits: on disk, or in memory.

A visit files its result under the round's label; only when the round is committed does it replace what
the device had. So a device that failed or was left out keeps its old personal part, and a crash at any
moment leaves either the old or the new one.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from partita.durable import sync_folder, write_file
from partita.params import Params, cloned, from_bytes, to_bytes
from partita.protocol import DeviceId


class Store(Protocol):
    """The personal parts of the devices of one run."""

    def load(self, device: DeviceId, counted: str | None = None) -> dict[str, Tensor] | None:
        """Return what the device keeps, None if nothing yet; `counted` names its last counted round."""
        ...

    def save(self, device: DeviceId, label: str, personal: Params) -> None:
        """File what a visit in the round `label` gave, until that round is committed."""
        ...

    def commit(self, label: str, counted: Sequence[DeviceId]) -> None:
        """Keep what the `counted` devices filed under `label`, and drop all else that was filed."""
        ...


class MemoryStore:
    """Personal parts in memory, gone with the process."""

    def __init__(self) -> None:
        self._kept: dict[DeviceId, Params] = {}
        self._filed: dict[tuple[DeviceId, str], Params] = {}

    def load(self, device: DeviceId, counted: str | None = None) -> dict[str, Tensor] | None:
        """Return a copy of what the device keeps."""
        if counted is not None and (device, counted) in self._filed:
            self._kept[device] = self._filed.pop((device, counted))
        return cloned(self._kept[device]) if device in self._kept else None

    def save(self, device: DeviceId, label: str, personal: Params) -> None:
        """File a copy."""
        self._filed[device, label] = cloned(personal)

    def commit(self, label: str, counted: Sequence[DeviceId]) -> None:
        """Keep what was counted."""
        for device in counted:
            if (device, label) in self._filed:
                self._kept[device] = self._filed[device, label]
        self._filed.clear()


class DiskStore:
    """Personal parts in a folder, one safetensors file a device, with the device's id inside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # What an earlier process may have left is found by one look at the folder, at the first commit.
        self._filed = set(folder.glob("*.next"))

    def load(self, device: DeviceId, counted: str | None = None) -> dict[str, Tensor] | None:
        """Read what the device keeps."""
        kept = self.path_of(device)
        if counted is not None and (filed := self._next(device, counted)) in self._filed:
            filed.replace(kept)
            sync_folder(self.folder)
            self._filed.discard(filed)
        try:
            return from_bytes(kept.read_bytes())
        except FileNotFoundError:
            return None

    def save(self, device: DeviceId, label: str, personal: Params) -> None:
        """Write a `.next` file beside the device's own and wait until the disk has it."""
        path = self._next(device, label)
        write_file(path, to_bytes(personal, device=device))
        sync_folder(self.folder)
        self._filed.add(path)

    def commit(self, label: str, counted: Sequence[DeviceId]) -> None:
        """Rename each counted `.next` over the device's own file and delete every other."""
        for device in counted:
            path = self._next(device, label)
            if path in self._filed:
                path.replace(self.path_of(device))
                self._filed.discard(path)
        for path in self._filed:
            path.unlink()
        self._filed.clear()
        sync_folder(self.folder)

    def path_of(self, device: DeviceId) -> Path:
        """Return the file of a device's personal part."""
        return self.folder / f"{key_of(device)}.safetensors"

    def _next(self, device: DeviceId, label: str) -> Path:
        return self.folder / f"{key_of(device)}.{label}.next"


def key_of(device: DeviceId) -> str:
    """Return a file name for any device id: its readable beginning, and a digest that makes it unique.

    >>> key_of("../form 3")
    'form_3-3e9c02f377571278'
    """
    readable = re.sub(r"[^A-Za-z0-9]+", "_", device).strip("_")[:40]
    return f"{readable}-{hashlib.sha256(device.encode()).hexdigest()[:16]}"
