"""Copies of what devices kept after the best round so far, where training may stop early.

A copy is a `.best` file beside the device's own: the label of the best round and a digest in its first line,
then the device's own file as it was, or nothing where there was none.
"""

from collections.abc import Mapping
from pathlib import Path

from partita.device.part_files import (
    COPY,
    DEVICE,
    ROUND,
    SUFFIX,
    about_file,
    content_of_copy,
    copy_bytes,
    is_from,
    label_of_copy,
)
from partita.durable import PRIVATE, replace_file, sync_folder
from partita.errors import Damaged
from partita.sealed_tensors import about
from partita.seals import RESTORE, damaged


class Copies:
    """The copies in a folder of personal parts.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = folder / "restoring"
        """A file that exists while devices go back."""

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return any(self._folder.glob(f"*{COPY}"))

    @property
    def is_restoring(self) -> bool:
        """Whether devices were going back to their copies when the process ended."""
        return self._mark.exists()

    def preserve(self, own: Path, label: str) -> None:
        """Copy a device's own file under a label, unless there is a copy under it.

        Raises:
            Damaged: there was such a copy, which is lost.
        """
        copy = own.with_suffix(COPY)
        if label_of_copy(copy) == label:
            return
        content = own.read_bytes() if own.exists() else b""
        _check_copied(own, about(content) if content else None, label)
        replace_file(copy, copy_bytes(label, content), mode=PRIVATE)

    def restore(self, label: str) -> None:
        """Replace the files of devices by their copies, and only when all are on disk delete the copies.

        Raises:
            Damaged: a copy is missing, or is not as it was written.
        """
        self.check(label)
        copies = sorted(self._folder.glob(f"*{COPY}"))
        replace_file(self._mark, label.encode(), mode=PRIVATE)
        for copy in copies:
            if label_of_copy(copy) != label:
                continue
            own = copy.with_suffix(SUFFIX)
            if content := content_of_copy(copy):
                replace_file(own, content, mode=PRIVATE)
            else:
                own.unlink(missing_ok=True)
        sync_folder(self._folder)
        for copy in copies:
            copy.unlink()
        sync_folder(self._folder)
        self._mark.unlink()
        sync_folder(self._folder)

    def check(self, label: str) -> None:
        """Raise if the copy of a device under a label is lost or damaged.

        A device whose personal part is of the label's round, or of a later one, has a copy of an earlier one.
        """
        for copy in sorted(self._folder.glob(f"*{COPY}")):
            if label_of_copy(copy) == label:
                content_of_copy(copy)
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            if label_of_copy(path.with_suffix(COPY)) == label:
                continue
            try:
                found = about_file(path)
            except ValueError as error:
                raise damaged(path, str(error)) from None
            _check_copied(path, found, label)


def _check_copied(own: Path, found: Mapping[str, str] | None, label: str) -> None:
    """Raise if a device's own file, without a copy under a label, is of the label's round or a later one."""
    if found is not None and is_from(found.get(ROUND, ""), label):
        raise Damaged(
            f"`{own.with_suffix(COPY)}`, what device {found.get(DEVICE)!r} kept after the best round, "
            f"`{label}`, is missing or damaged: {RESTORE}."
        )
