"""A file of a run that grows by lines: its size and digest at the last commit, and lines past it dropped."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from partita.durable import append_file, sync_file
from partita.runs.recorded import Recorded


class Log:
    """A file that grows by lines.

    Args:
        path: the file, which need not exist.
        recorded: what the last commit has recorded of it. Lines past that are dropped.

    Raises:
        Damaged: its lines are not those that were committed.
    """

    def __init__(self, path: Path, recorded: Recorded) -> None:
        self._path = path
        self._digest = recorded.digest(path)
        self.size: int = recorded.journals.get(path.name, {"bytes": 0})["bytes"]
        if path.exists():
            os.truncate(path, self.size)

    @property
    def entry(self) -> dict[str, Any]:
        """The size and the digest, which a commit records."""
        return {"bytes": self.size, "sha256": self._digest.hexdigest()}

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines, which are on disk then."""
        content = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
        self.size = append_file(self._path, content)
        self._digest.update(content)

    def catch_up(self) -> None:
        """Take account of lines that others have appended, and wait until they are on disk."""
        if not self._path.exists():
            return
        sync_file(self._path)
        with self._path.open("rb") as file:
            file.seek(self.size)
            content = file.read()
        self._digest.update(content)
        self.size += len(content)
