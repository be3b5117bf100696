"""Bad rows that were left out: each counted once, and written down where a run is kept."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import overload

from partita.protocol import DeviceId

FILE = "skipped.jsonl"
"""The file of a run's folder with a line for each row that was left out."""


@dataclass(frozen=True)
class LeftOut:
    """A row of a table that cannot be used."""

    file: str
    row: int
    """Its number in the file, from 0."""
    device: DeviceId
    reason: str

    def __str__(self) -> str:
        return f"`{self.file}`, row {self.row}, device {self.device!r}: {self.reason}"


class Skipped(Sequence[LeftOut]):
    """The rows that were left out, in the order in which they were met; it grows in place.

    >>> skipped = Skipped()
    >>> for _ in range(2):
    ...     skipped.add(LeftOut("a.parquet", 3, "ann", "`text` is empty"))
    >>> len(skipped), str(skipped[0])
    (1, "`a.parquet`, row 3, device 'ann': `text` is empty")
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], LeftOut] = {}
        self._folder: Path | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[LeftOut]:
        return iter(self._rows.values())

    @overload
    def __getitem__(self, position: int) -> LeftOut: ...
    @overload
    def __getitem__(self, position: slice) -> list[LeftOut]: ...
    def __getitem__(self, position: int | slice) -> LeftOut | list[LeftOut]:
        """Return the row at a position, or the rows of a slice."""
        return list(self._rows.values())[position]

    def add(self, row: LeftOut) -> None:
        """Count a row, unless it is known, and write it down where rows are kept."""
        if (row.file, row.row) in self._rows:
            return
        self._rows[row.file, row.row] = row
        if self._folder is not None:
            with (self._folder / FILE).open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")

    def keep_in(self, folder: Path) -> None:
        """Write the rows down in a run's folder from now on; what is there already is known."""
        met, self._rows = list(self), {(row.file, row.row): row for row in read_skipped(folder)}
        self._folder = folder
        for row in met:
            self.add(row)


def read_skipped(folder: Path) -> list[LeftOut]:
    """Return the rows that a run's folder says were left out; a line that a kill has cut is cut off."""
    path = folder / FILE
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        os.truncate(path, len(whole))
    return [LeftOut(**json.loads(line)) for line in whole.splitlines()]


def skipped_text(skipped: Sequence[LeftOut]) -> str:
    """Return how many bad rows were skipped, and the first of them."""
    rows = "1 bad row was" if len(skipped) == 1 else f"{len(skipped)} bad rows were"
    return f"{rows} skipped ({skipped[0]})"
