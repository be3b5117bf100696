"""Rows that are kept between visits: in memory, and on disk where asked.

The output of the layers before the first parameter that is not frozen is the same in every visit. Dropping it
changes no result: it is computed again.
"""

import hashlib
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors import SafetensorError

from partita.data.cache import ExampleCache
from partita.data.moving import CPU
from partita.durable import PRIVATE, make_private_folder, replace_file
from partita.params import from_bytes, to_bytes
from partita.protocol import DeviceId, key_of
from partita.reuse.kept import Kept

KEPT_BYTES = 256_000_000
"""Memory for kept rows, of all processes of a run together."""


class KeptRows:
    """The kept rows of the devices visited last.

    Args:
        folder: the folder for those of all devices, None to keep them in memory alone.
        max_bytes: the memory for them.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int = KEPT_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, DeviceId], Kept] = OrderedDict()

    def take(self, frozen: str, device: DeviceId, size: int, accelerator: torch.device = CPU) -> Kept:
        """Return what is kept of a device's examples with a frozen part, and let go of it.

        Args:
            frozen: the digest of the frozen part.
            device: the device.
            size: the number of its examples.
            accelerator: where the visit computes.
        """
        kept = self._kept.pop((frozen, device), None)
        if kept is not None:
            self._bytes -= kept.nbytes
        elif self.folder is not None:
            kept = _read(self._file(self.folder, frozen, device), accelerator)
        return kept if kept is not None and kept.size == size else Kept(size)

    def put(self, frozen: str, device: DeviceId, kept: Kept) -> None:
        """Keep the rows that stay valid, and drop those of the least recently visited devices."""
        kept.forget()
        if not kept.nbytes:
            return
        if self.folder is not None and kept.is_new:
            make_private_folder(self.folder)
            content = to_bytes(kept.tensors())
            file = self._file(self.folder, frozen, device)
            replace_file(file, _digest(content) + content, mode=PRIVATE)
        kept.is_new = False
        self._kept[frozen, device] = kept
        self._bytes += kept.nbytes
        while self._bytes > self.max_bytes // ExampleCache.processes:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes

    @staticmethod
    def _file(folder: Path, frozen: str, device: DeviceId) -> Path:
        return folder / f"{key_of(device)}.{frozen[:16]}.rows"


def _read(file: Path, accelerator: torch.device) -> Kept | None:
    """Return the rows in a file; None where there is none, or it is damaged."""
    try:
        content = file.read_bytes()
        length = len(_digest(b""))
        if content[:length] != _digest(content[length:]):
            return None
        return Kept.of(from_bytes(content[length:]), accelerator)
    except (FileNotFoundError, SafetensorError):
        return None


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
