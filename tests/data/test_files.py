"""Parquet files read in bounded memory."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from partita.data.files import sorted_device_ids


def test_ids_are_found_across_row_groups(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"device": ["a", "a", "a", "b", "b", "c"]}), tmp_path / "t.parquet", row_group_size=2
    )

    assert list(sorted_device_ids(tmp_path / "t.parquet")) == ["a", "b", "c"]
