"""The files of a table, and their row groups one after the other."""

import bisect
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from partita.data.reading import one_line, open_files
from partita.data.rows import Place, WrongRow

logger = logging.getLogger(__name__)

_OPEN = 16
"""Files kept open at a time: what is at the end of each is read when it is opened."""
_LARGE = 64_000_000
"""Bytes of a row group from which reading one device's rows is slow."""


class Groups:
    """The row groups of a Parquet file, or of a folder of them, counted through."""

    def __init__(self, path: Path) -> None:
        files = open_files(path)
        self.paths = files.paths
        self.schema = files.schema
        self.tables = files.tables
        self.begins: list[int] = []
        """The number of the first row of each row group."""
        self._groups: list[tuple[Path, int]] = []
        self._firsts: list[int] = []
        self._open: dict[Path, pq.ParquetFile] = {}
        rows = largest = 0
        for file in self.paths:
            metadata = pq.read_metadata(file)
            self._firsts.append(rows)
            for number in range(metadata.num_row_groups):
                self.begins.append(rows)
                self._groups.append((file, number))
                rows += metadata.row_group(number).num_rows
                largest = max(largest, metadata.row_group(number).total_byte_size)
        if largest > _LARGE:
            logger.warning(
                "Row groups of `%s` have up to %d MB, read whole for one device: `partita import sort` "
                "writes small ones.",
                path,
                largest // 1_000_000,
            )

    def place_of(self, row: int) -> Place:
        """Return the file in which a row of the table stands, and its number there."""
        position = bisect.bisect_right(self._firsts, row) - 1
        return self.paths[position].name, row - self._firsts[position]

    def read(self, number: int, names: list[str]) -> pa.Table:
        """Read some columns of a row group.

        Raises:
            WrongRow: it cannot be read; the row is its first one.
        """
        file, place = self._groups[number]
        try:
            if file not in self._open:
                if len(self._open) == _OPEN:
                    self._open.popitem()[1].close()
                self._open[file] = pq.ParquetFile(file)
            return self._open[file].read_row_group(place, columns=names)
        except (OSError, pa.ArrowException) as error:
            what = f"the row group cannot be read, {one_line(error).rstrip('.')}"
            raise WrongRow(self.begins[number], what) from error
