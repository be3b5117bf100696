"""The digests that the last commit of a run has recorded of its files: whoever reads a file checks it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from partita.errors import Damaged
from partita.seals import damaged, missing, sha256, sha256_of

FILES, JOURNALS = "files", "journals"
"""The entries of `commit.json` with the digests of whole files, and of files that grow."""
CHECKPOINTS, BEST = ("shared", "optimizer"), "best_shared"
"""The entries of `commit.json` for the server's state, and for u after the best round with early stopping."""
_OTHER = "its content is not what was committed"
_BLOCK = 1 << 20


def checkpoints_in(commit: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the digest of each checkpoint that the content of a `commit.json` names, by its file name."""
    entries = [(commit or {}).get(kind, {}) for kind in (*CHECKPOINTS, BEST)]
    return {entry["file"]: entry["digest"] for entry in entries if "file" in entry}


class Recorded:
    """The digests of a run's files.

    Args:
        folder: the run's folder.
        commit: the content of its `commit.json`; None before the first commit.
    """

    def __init__(self, folder: Path, commit: Mapping[str, Any] | None) -> None:
        self._folder = folder
        self.files: Mapping[str, str] = (commit or {}).get(FILES, {})
        self.journals: Mapping[str, Mapping[str, Any]] = (commit or {}).get(JOURNALS, {})

    def name_of(self, path: Path) -> str:
        """Return the name by which a commit records a file."""
        return path.relative_to(self._folder).as_posix()

    def has(self, path: Path) -> bool:
        """Return whether the digest of a whole file is recorded."""
        return self.name_of(path) in self.files

    def content(self, path: Path) -> bytes:
        """Return the content of a file, which is checked where its digest is recorded.

        Raises:
            Damaged: it is not what was recorded, or is missing.
            FileNotFoundError: there is no file, and none is recorded.
        """
        recorded = self.files.get(self.name_of(path))
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            if recorded is not None:
                raise missing(path) from None
            raise
        if recorded not in (None, sha256(content)):
            raise damaged(path, _OTHER)
        return content

    def check(self, path: Path) -> None:
        """Raise if a file is not what was recorded, or is missing."""
        recorded = self.files.get(self.name_of(path))
        try:
            if recorded not in (None, sha256_of(path)):
                raise damaged(path, _OTHER)
        except FileNotFoundError:
            if recorded is not None:
                raise missing(path) from None

    def lines(self, path: Path) -> Iterator[Mapping[str, Any]]:
        """Yield the committed lines of a journal as values; all lines where nothing is recorded of it.

        Raises:
            Damaged: they are not those that were committed.
        """
        entry = self.journals.get(self.name_of(path))
        if entry is not None:
            self.digest(path)
        left = None if entry is None else entry["bytes"]
        with path.open("rb") as lines:
            for line in lines:
                if left is not None and (left := left - len(line)) < 0:
                    break
                yield _parsed(path, line)

    def digest(self, path: Path) -> "hashlib._Hash":
        """Return a digest of the committed lines of a journal, which can grow with further lines.

        Raises:
            Damaged: they are not those that were committed.
        """
        entry = self.journals.get(self.name_of(path), {"bytes": 0})
        digest, left = hashlib.sha256(), entry["bytes"]
        try:
            with path.open("rb") as file:
                while left and (block := file.read(min(left, _BLOCK))):
                    digest.update(block)
                    left -= len(block)
        except FileNotFoundError:
            if left:
                raise missing(path) from None
        if left or entry.get("sha256", digest.hexdigest()) != digest.hexdigest():
            raise damaged(path, "its lines are not those that were committed")
        return digest

    def problems(self, *, is_finished: bool) -> Iterator[str]:
        """Yield a sentence for each recorded file that is damaged or missing.

        A journal of an unfinished run may have lines past the last commit, which a resumed run drops.
        """
        for name in self.files:
            yield from _problem(self.check, self._folder / name)
        for name, entry in self.journals.items():
            path = self._folder / name
            yield from (found := list(_problem(self.digest, path)))
            if not found and is_finished and path.exists() and path.stat().st_size > entry["bytes"]:
                yield str(damaged(path, "it has more than what was committed"))


def _problem(check: Any, path: Path) -> Iterator[str]:
    try:
        check(path)
    except Damaged as error:
        yield str(error)


def _parsed(path: Path, line: bytes) -> Mapping[str, Any]:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise damaged(path, "a line of it is not JSON") from None
