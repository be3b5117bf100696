"""Rows that were left out: counted once, and written down."""

from pathlib import Path

from partita.data.skipped import FILE, LeftOut, Skipped, read_skipped


def row(number: int) -> LeftOut:
    return LeftOut("t.parquet", number, "ann", "`text` is empty")


def test_rows_met_before_and_after_are_written_down_once_over_all_runs(tmp_path: Path) -> None:
    for numbers in ((1, 2), (2, 3), (3, 1)):
        skipped = Skipped()
        skipped.add(row(numbers[0]))
        skipped.keep_in(tmp_path)
        skipped.add(row(numbers[1]))

    assert read_skipped(tmp_path) == [row(1), row(2), row(3)]
    assert list(skipped) == [row(1), row(2), row(3)]


def test_a_line_that_was_cut_is_written_again(tmp_path: Path) -> None:
    skipped = Skipped()
    skipped.keep_in(tmp_path)
    skipped.add(row(1))
    skipped.add(row(2))
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-9])

    again = Skipped()
    again.keep_in(tmp_path)
    again.add(row(2))

    assert (tmp_path / FILE).read_bytes() == whole


def test_nothing_is_written_where_nothing_was_left_out(tmp_path: Path) -> None:
    Skipped().keep_in(tmp_path)

    assert list(tmp_path.iterdir()) == []
