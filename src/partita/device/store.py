"""Storage of personal parts between visits: on disk, or in memory.

A visit saves its result under the round's label; only the commit of the round makes it the device's personal
part. So a device that failed or was left out keeps its old personal part, and a crash at any moment leaves
either the old or the new one.

Where training may stop early, a device also preserves a copy of what it had after the best round so far.
"""

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from torch import Size, Tensor

from partita.durable import make_folder, replace_file, sync_file, sync_folder
from partita.errors import ConfigError
from partita.params import Params, cloned, from_bytes, to_bytes
from partita.protocol import DeviceId, key_of


class Store(Protocol):
    """The personal parts of the devices of one run."""

    def load(self, device: DeviceId) -> dict[str, Tensor] | None:
        """Return what the device keeps, None if nothing yet."""
        ...

    def save(self, device: DeviceId, label: str, personal: Params) -> None:
        """Save the result of a visit in the round `label`, until that round is committed."""
        ...

    def sync(self, label: str, asked: Sequence[DeviceId]) -> None:
        """Wait until what devices have saved under `label` is on disk, whichever process saved it."""
        ...

    def commit(self, label: str, counted: Sequence[DeviceId], asked: Sequence[DeviceId]) -> None:
        """Keep what the `counted` devices saved under `label`, and drop what others of `asked` saved."""
        ...

    def preserve(self, device: DeviceId, label: str) -> None:
        """Preserve what the device keeps now under `label`, unless it has preserved something under it."""
        ...

    def restore(self, label: str) -> None:
        """Let every device that has preserved something under `label` keep that, and drop all copies."""
        ...


class MemoryStore:
    """Personal parts in memory, lost with the process."""

    def __init__(self) -> None:
        self._kept: dict[DeviceId, Params] = {}
        self._saved: dict[tuple[DeviceId, str], Params] = {}
        self._preserved: dict[DeviceId, tuple[str, Params | None]] = {}

    def load(self, device: DeviceId) -> dict[str, Tensor] | None:
        """Return a copy of what the device keeps."""
        return cloned(self._kept[device]) if device in self._kept else None

    def save(self, device: DeviceId, label: str, personal: Params) -> None:
        """Save a copy."""
        self._saved[device, label] = cloned(personal)

    def sync(self, label: str, asked: Sequence[DeviceId]) -> None:
        """Do nothing: nothing is on disk."""

    def commit(self, label: str, counted: Sequence[DeviceId], asked: Sequence[DeviceId]) -> None:
        """Keep what the counted devices saved."""
        for device in counted:
            if (device, label) in self._saved:
                self._kept[device] = self._saved[device, label]
        for device in asked:
            self._saved.pop((device, label), None)

    def preserve(self, device: DeviceId, label: str) -> None:
        """Preserve what the device keeps; nothing changes these tensors later."""
        if self._preserved.get(device, ("", None))[0] != label:
            self._preserved[device] = label, self._kept.get(device)

    def restore(self, label: str) -> None:
        """Go back to what is preserved under the label."""
        for device, (own, personal) in self._preserved.items():
            if own != label:
                continue
            if personal is None:
                self._kept.pop(device, None)
            else:
                self._kept[device] = personal
        self._preserved.clear()


class DiskStore:
    """Personal parts in a folder, one safetensors file per device, with the device's id inside.

    Args:
        folder: the folder.
        temporary: a temporary folder, which has the first in it and is removed with this object; nothing
            waits for the disk then.
    """

    def __init__(self, folder: Path, *, temporary: Path | None = None) -> None:
        self.folder = folder
        self.rows_folder = folder.parent / "reuse"
        """The folder for rows that devices compute only once in a run, see `reuse.kept_rows`."""
        self._temporary = temporary
        if temporary is not None:
            weakref.finalize(self, _remove, temporary, owner=os.getpid())

    @classmethod
    def temporary(cls) -> "DiskStore":
        """Return a store in a temporary folder, in a folder of its own that the first save makes."""
        folder = Path(tempfile.mkdtemp(prefix="partita-"))
        return cls(folder / "personal", temporary=folder)

    def remove_temporary(self) -> None:
        """Remove a temporary folder, for a process that has ended before it could."""
        if self._temporary is not None:
            _remove(self._temporary, owner=os.getpid())

    def load(self, device: DeviceId) -> dict[str, Tensor] | None:
        """Read what the device keeps."""
        try:
            return from_bytes(self.path_of(device).read_bytes())
        except FileNotFoundError:
            return None

    def save(self, device: DeviceId, label: str, personal: Params) -> None:
        """Write a `.next` file beside the device's own."""
        make_folder(self.folder, exist_ok=True)
        self._next(device, label).write_bytes(to_bytes(personal, device=device))

    def sync(self, label: str, asked: Sequence[DeviceId]) -> None:
        """Wait for the `.next` files of a round together, which is faster than for one at a time."""
        if self._temporary is not None:
            return
        for device in asked:
            with contextlib.suppress(FileNotFoundError):
                sync_file(self._next(device, label))
        if self.folder.is_dir():
            sync_folder(self.folder)

    def commit(self, label: str, counted: Sequence[DeviceId], asked: Sequence[DeviceId]) -> None:
        """Rename each counted `.next` over the device's own file and delete the others of the round."""
        if not self.folder.is_dir():  # Nothing was ever saved.
            return
        keeps = set(counted)
        for device in asked:
            saved = self._next(device, label)
            with contextlib.suppress(FileNotFoundError):
                if device in keeps:
                    saved.replace(self.path_of(device))
                else:
                    saved.unlink()
        if self._temporary is None:
            sync_folder(self.folder)

    def preserve(self, device: DeviceId, label: str) -> None:
        """Write a `.best` file beside the device's own: the label, and a copy of its own if there is one."""
        own, copy = self.path_of(device), self.folder / f"{key_of(device)}.best"
        if _label_of(copy) == label:
            return
        content = own.read_bytes() if own.exists() else b""
        make_folder(self.folder, exist_ok=True)
        replace_file(copy, label.encode() + b"\n" + content)

    def restore(self, label: str) -> None:
        """Replace the files of devices by their copies, and only when all are on disk delete the copies."""
        if not self.folder.is_dir():
            return
        copies = sorted(self.folder.glob("*.best"))
        for copy in copies:
            if _label_of(copy) != label:
                continue
            own, content = copy.with_suffix(".safetensors"), copy.read_bytes().partition(b"\n")[2]
            if content:
                replace_file(own, content)
            else:
                own.unlink(missing_ok=True)
        sync_folder(self.folder)
        for copy in copies:
            copy.unlink()
        sync_folder(self.folder)

    def path_of(self, device: DeviceId) -> Path:
        """Return the file of a device's personal part."""
        return self.folder / f"{key_of(device)}.safetensors"

    def _next(self, device: DeviceId, label: str) -> Path:
        return self.folder / f"{key_of(device)}.{label}.next"


def _remove(folder: Path, *, owner: int) -> None:
    """Remove a folder, unless this process is a copy of its owner."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _label_of(copy: Path) -> str | None:
    """Return the label of a preserved copy, its first line; None where there is no copy."""
    try:
        with copy.open("rb") as file:
            return file.readline().rstrip(b"\n").decode()
    except FileNotFoundError:
        return None


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
