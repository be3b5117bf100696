"""Storage of personal parts between visits: on disk, or in memory.

A visit saves its result under the round's label; only the commit of the round makes it the device's personal
part. So a device that failed or was left out keeps its old personal part, and a crash at any moment leaves
either the old or the new one.

Where training may stop early, a device also preserves a copy of what it had after the best round so far.
"""

import contextlib
import glob
import os
import shlex
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from torch import Size, Tensor

from partita.device.copies import Copies
from partita.device.part_files import COPY, DEVICE, ROUND, SUFFIX, about_file
from partita.durable import make_private_folder, sync_file, sync_folder, write_private
from partita.errors import ConfigError, Damaged
from partita.params import Params, cloned
from partita.protocol import DeviceId, key_of
from partita.sealed_tensors import about, part_pieces, unsealed_tensors


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
    """Personal parts in a folder, one sealed safetensors file per device, with the device's id inside.

    Only the owner of the folder can read them.

    Args:
        folder: the folder.
        temporary: a temporary folder, which has the first in it and is removed with this object; nothing
            waits for the disk then.
        before: returns what a device has kept elsewhere, where it has saved nothing here yet.
        can_reset: whether a device of the run can start again, which the error about a damaged file says.
    """

    def __init__(
        self,
        folder: Path,
        *,
        temporary: Path | None = None,
        before: Callable[[DeviceId], dict[str, Tensor] | None] = lambda _: None,
        can_reset: bool = True,
    ) -> None:
        self.folder = folder
        self._before = before
        self.rows_folder = folder.parent / "reuse"
        """The folder for rows that devices compute only once, see `reuse.kept_rows`."""
        self.copies = Copies(folder)
        self._temporary = temporary
        self._can_reset = can_reset and temporary is None
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
        """Read what the device keeps.

        Raises:
            Damaged: the file is not as it was written, or it is another device's.
        """
        try:
            content = self.path_of(device).read_bytes()
        except FileNotFoundError:
            return self._before(device)
        try:
            tensors = unsealed_tensors(content)
            self._check_owner(device, about(content))
        except ValueError as error:
            raise self.damaged(device, str(error)) from None
        return tensors

    def round_of(self, device: DeviceId) -> str | None:
        """Return the label of the round that a device's personal part is of; None where it keeps nothing.

        Only the header of the file is read.

        Raises:
            Damaged: the header is not as it was written, or it is another device's.
        """
        try:
            found = about_file(self.path_of(device))
            return self._check_owner(device, found)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise self.damaged(device, str(error)) from None

    def damaged(self, device: DeviceId, reason: str | None) -> Damaged:
        """Return the error about the personal part of a device, which is missing if there is no reason."""
        state = f"is damaged: {reason}" if reason else "is missing"
        what = f"`{self.path_of(device)}`, the personal part of device {device!r}, {state}."
        if not self._can_reset:
            return Damaged(f"{what} Restore it from a copy.")
        command = shlex.join(
            ["partita", "run", "--resume", str(self.folder.parent), "--reset-device", device]
        )
        return Damaged(f"{what} Restore it from a copy, or let the device start again: `{command}`.")

    def save(self, device: DeviceId, label: str, personal: Params) -> None:
        """Write a `.next` file beside the device's own."""
        make_private_folder(self.folder)
        write_private(self.next_of(device, label), *part_pieces(personal, device=device, label=label))

    def sync(self, label: str, asked: Sequence[DeviceId]) -> None:
        """Wait for the `.next` files of a round together, which is faster than for one at a time."""
        if self._temporary is not None:
            return
        for device in asked:
            with contextlib.suppress(FileNotFoundError):
                sync_file(self.next_of(device, label))
        if self.folder.is_dir():
            sync_folder(self.folder)

    def commit(self, label: str, counted: Sequence[DeviceId], asked: Sequence[DeviceId]) -> None:
        """Rename each counted `.next` over the device's own file and delete the others of the round."""
        if not self.folder.is_dir():  # Nothing was ever saved.
            return
        keeps = set(counted)
        for device in asked:
            saved = self.next_of(device, label)
            with contextlib.suppress(FileNotFoundError):
                if device in keeps:
                    saved.replace(self.path_of(device))
                else:
                    saved.unlink()
        if self._temporary is None:
            sync_folder(self.folder)

    def settle(self, device: DeviceId, counted: str | None) -> None:
        """Keep what a device has saved in the last round that counted; drop what it has saved in others.

        For a device that learns so only now: rounds may have been lost since.
        """
        if counted is not None:
            self.commit(counted, [device], [device])
        if dropped := self._all_next(device):
            for path in dropped:
                path.unlink()
            sync_folder(self.folder)

    def has_saved(self, device: DeviceId, label: str) -> bool:
        """Return whether a device has saved something under a label that is not committed yet."""
        return self.next_of(device, label).exists()

    def preserve(self, device: DeviceId, label: str) -> None:
        """Write a `.best` file beside the device's own: the label, and a copy of its own if there is one."""
        make_private_folder(self.folder)
        self.copies.preserve(self.path_of(device), label)

    def restore(self, label: str) -> None:
        """Replace the files of devices by their copies, and only when all are on disk delete the copies."""
        if self.folder.is_dir():
            self.copies.restore(label)

    def forget(self, device: DeviceId) -> None:
        """Delete everything that a device keeps."""
        own = self.path_of(device)
        for path in (own, own.with_suffix(COPY), *self._all_next(device)):
            path.unlink(missing_ok=True)
        if self.folder.is_dir():
            sync_folder(self.folder)

    def path_of(self, device: DeviceId) -> Path:
        """Return the file of a device's personal part."""
        return self.folder / f"{key_of(device)}{SUFFIX}"

    def _check_owner(self, device: DeviceId, found: Mapping[str, str] | None) -> str:
        """Return the round in the seal of a file, which must have one, and must be the device's."""
        if found is None:
            raise ValueError("it has no sha256")
        if found.get(DEVICE) != device:
            raise ValueError(f"it is that of device {found.get(DEVICE)!r}")
        return found.get(ROUND, "").rstrip()

    def _all_next(self, device: DeviceId) -> list[Path]:
        return list(self.folder.glob(f"{glob.escape(key_of(device))}.*.next"))

    def next_of(self, device: DeviceId, label: str) -> Path:
        """Return the file of what a device has saved under a label until that round is committed."""
        return self.folder / f"{key_of(device)}.{label}.next"


def _remove(folder: Path, *, owner: int) -> None:
    """Remove a folder, unless this process is a copy of its owner."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


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
