"""The results of the benchmark as Markdown, and the pages that quote them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from results import BEGIN, DOCS, END, NOTHING, README, Results, full_block, quoted, read, short_block
from row import Row

MACHINE = {
    "cpu": "A processor",
    "cores": 2,
    "capability": "AVX2",
    "system": "Linux x86_64",
    "python": "3.11.7",
    "torch": "2.13.0",
    "gemm": 5e10,
}
ROWS = [
    Row(workload="a round", against="a peer", goal="faster", target=1.5, ours=0.002, other=0.004, flops=1e7),
    Row(workload="a round", against="a loop", goal="slower", target=1.1, ours=3, other=2),
    Row(workload="memory", goal="under", target=100, ours=1234, unit="bytes a device"),
    Row(workload="a study", against="before", goal="faster", target=2, skipped="no data"),
]
RESULTS = {
    "some": {"date": "2026-01-02", "machine": MACHINE, "rows": [row.record(5e10) for row in ROWS]},
}


def test_the_table_says_plainly_which_targets_are_missed() -> None:
    assert short_block(RESULTS).splitlines() == [
        "Measured on 2026-01-02: A processor (AVX2), 2 cores, Linux x86_64, Python 3.11.7, torch 2.13.0, "
        "one core multiplies matrices at 50 GFLOP/s.",
        "",
        "| workload | against | result | target | met |",
        "| --- | --- | --- | --- | --- |",
        "| a round | a peer | 2x faster | at least 1.5x faster | yes |",
        "| a round | a loop | 1.5x its time | at most 1.1x its time | **no** |",
        "| memory | | 1,234 bytes a device | at most 100 bytes a device | **no** |",
        "| a study | before | not measured: no data | at least 2x faster | |",
    ]


def test_the_short_table_has_only_the_worst_of_many_predictions() -> None:
    rows = [
        Row(workload=f"memory: {case}", goal="within", target=15, ours=ours, other=100)
        for case, ours in {"a": 101.0, "b": 80.0, "c": 110.0}.items()
    ]
    other = Row(workload="memory: not run", goal="within", target=15, skipped="no data")
    records = [row.record(5e10) for row in (*rows, other)]

    *_, worst, skipped = short_block({"some": {**RESULTS["some"], "rows": records}}).splitlines()

    assert worst.startswith("| memory: the worst of 3 cases, b | | 20 % difference | at most 15 %")
    assert "not measured: no data" in skipped


def test_the_full_table_has_figures_and_the_share_of_the_limit() -> None:
    # 1e7 operations take 0.2 ms at 5e10 a second: a tenth of 2 ms.
    line = "| a round | a peer | 2 ms | 4 ms | 2x faster | at least 1.5x faster | yes | 10 % |"
    assert line in full_block(RESULTS).splitlines()


def test_runs_on_different_days_are_named_with_their_modules() -> None:
    later = {**RESULTS, "others": {**RESULTS["some"], "date": "2026-01-03"}}

    first, second, *_ = short_block(later).splitlines()

    assert first.startswith("- Measured on 2026-01-02")
    assert first.endswith("(some).")
    assert second.endswith("(others).")


@pytest.mark.parametrize(("page", "block"), [(README, short_block), (DOCS, full_block)])
def test_pages_quote_the_latest_results(page: Path, block: Callable[[Results], str]) -> None:
    assert page.read_text() == quoted(page.read_text(), block(read()))


def test_a_page_keeps_what_is_around_its_quotation() -> None:
    page = f"before\n{BEGIN}\n\nold\n\n{END}\nafter\n"

    assert quoted(page, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    with pytest.raises(ValueError, match="needs one place"):
        quoted("no marks", "new")


def test_without_results_pages_say_so() -> None:
    assert short_block({}) == full_block({}) == NOTHING
