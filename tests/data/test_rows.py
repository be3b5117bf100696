"""Skipped rows: counted once, and logged to a file."""

from pathlib import Path

from partita.data.rows import SkippedRow, SkippedRows, read_skipped, skipped_text


def row(number: int) -> SkippedRow:
    return SkippedRow("t.parquet", number, "ann", "`text` is empty")


def test_a_row_is_logged_once_over_all_runs(tmp_path: Path) -> None:
    log = tmp_path / "skipped.jsonl"
    for numbers in ((1, 2), (2, 3), (3, 1)):
        skipped = SkippedRows()
        skipped.add(row(numbers[0]))
        skipped.log_to(log)
        skipped.add(row(numbers[1]))

    assert read_skipped(log) == [row(1), row(2), row(3)]
    assert list(skipped) == [row(1), row(2), row(3)]


def test_an_incomplete_line_is_logged_again(tmp_path: Path) -> None:
    log = tmp_path / "skipped.jsonl"
    skipped = SkippedRows()
    skipped.log_to(log)
    skipped.add(row(1))
    skipped.add(row(2))
    complete = log.read_bytes()
    log.write_bytes(complete[:-9])

    again = SkippedRows()
    again.log_to(log)
    again.add(row(2))

    assert log.read_bytes() == complete


def test_reading_ignores_an_incomplete_line_and_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "skipped.jsonl"
    skipped = SkippedRows()
    skipped.log_to(log)
    skipped.add(row(1))
    log.write_bytes(log.read_bytes() + b'{"file": "t.par')
    before = log.read_bytes()

    assert read_skipped(log) == [row(1)]

    assert log.read_bytes() == before


def test_nothing_is_written_if_no_row_is_skipped(tmp_path: Path) -> None:
    SkippedRows().log_to(tmp_path / "skipped.jsonl")

    assert list(tmp_path.iterdir()) == []


def test_a_text_counts_the_rows_and_gives_the_first() -> None:
    first = "`t.parquet`, row 4, device 'ann': `text` is empty"

    assert skipped_text([row(4)]) == f"1 bad row was skipped ({first})"
    assert skipped_text([row(4), row(5)]) == f"2 bad rows were skipped ({first})"
