"""Storage of personal parts between visits: on disk, or in memory.

A visit saves its result under the round's label; only the commit of the round makes it the device's personal
part. So a device that failed or was left out keeps its old personal part, and a crash at any moment leaves
either the old or the new one.
"""

import contextlib
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from torch import Size, Tensor

from partita.durable import make_folder, sync_folder, write_file
from partita.errors import ConfigError
from partita.params import Params, cloned, from_bytes, to_bytes
from partita.protocol import DeviceId


class Store(Protocol):
    """The personal parts of the devices of one run."""

    def load(self, device: DeviceId) -> dict[str, Tensor] | None:
        """Return what the device keeps, None if nothing yet."""
        ...

    def save(self, device: DeviceId, label: str, personal: Params) -> None:
        """Save the result of a visit in the round `label`, until that round is committed."""
        ...

    def commit(self, label: str, counted: Sequence[DeviceId], asked: Sequence[DeviceId]) -> None:
        """Keep what the `counted` devices saved under `label`, and drop what others of `asked` saved."""
        ...


class MemoryStore:
    """Personal parts in memory, lost with the process."""

    def __init__(self) -> None:
        self._kept: dict[DeviceId, Params] = {}
        self._saved: dict[tuple[DeviceId, str], Params] = {}

    def load(self, device: DeviceId) -> dict[str, Tensor] | None:
        """Return a copy of what the device keeps."""
        return cloned(self._kept[device]) if device in self._kept else None

    def save(self, device: DeviceId, label: str, personal: Params) -> None:
        """Save a copy."""
        self._saved[device, label] = cloned(personal)

    def commit(self, label: str, counted: Sequence[DeviceId], asked: Sequence[DeviceId]) -> None:
        """Keep what the counted devices saved."""
        for device in counted:
            if (device, label) in self._saved:
                self._kept[device] = self._saved[device, label]
        for device in asked:
            self._saved.pop((device, label), None)


class DiskStore:
    """Personal parts in a folder, one safetensors file per device, with the device's id inside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, device: DeviceId) -> dict[str, Tensor] | None:
        """Read what the device keeps."""
        try:
            return from_bytes(self.path_of(device).read_bytes())
        except FileNotFoundError:
            return None

    def save(self, device: DeviceId, label: str, personal: Params) -> None:
        """Write a `.next` file beside the device's own and wait until it is on disk."""
        make_folder(self.folder, exist_ok=True)
        write_file(self._next(device, label), to_bytes(personal, device=device))
        sync_folder(self.folder)

    def commit(self, label: str, counted: Sequence[DeviceId], asked: Sequence[DeviceId]) -> None:
        """Rename each counted `.next` over the device's own file and delete the others of the round."""
        keeps = set(counted)
        for device in asked:
            saved = self._next(device, label)
            with contextlib.suppress(FileNotFoundError):
                if device in keeps:
                    saved.replace(self.path_of(device))
                else:
                    saved.unlink()
        if self.folder.is_dir():
            sync_folder(self.folder)

    def path_of(self, device: DeviceId) -> Path:
        """Return the file of a device's personal part."""
        return self.folder / f"{key_of(device)}.safetensors"

    def _next(self, device: DeviceId, label: str) -> Path:
        return self.folder / f"{key_of(device)}.{label}.next"


def check_shapes(device: DeviceId, personal: Params, expected: Mapping[str, Size]) -> None:
    """Refuse tensors that a later visit could not load.

    Raises:
        ConfigError: a tensor has another shape than the model's, or is not declared.
    """
    for name, tensor in personal.items():
        if name not in expected:
            raise ConfigError(
                f"Device {device!r} cannot keep `{name}`, which is neither personal nor declared: the method "
                "must declare it in `keeps`."
            )
        if tensor.shape != expected[name]:
            raise ConfigError(
                f"Device {device!r} cannot keep `{name}` with the shape {tuple(tensor.shape)}, expected "
                f"{tuple(expected[name])}: the loss or the method has changed it in training."
            )


def key_of(device: DeviceId) -> str:
    """Return a file name for any device id: a readable prefix, and a digest that makes it unique.

    >>> key_of("../form 3")
    'form_3-3e9c02f377571278'
    """
    readable = re.sub(r"[^A-Za-z0-9]+", "_", device).strip("_")[:40]
    return f"{readable}-{hashlib.sha256(device.encode()).hexdigest()[:16]}"
