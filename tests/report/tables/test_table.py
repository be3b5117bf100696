"""Tables as text: CSV loses nothing, Markdown and LaTeX are valid."""

import csv
import io
import re
from dataclasses import replace

from rich.console import Console

from partita.methods import registry
from partita.report.references import references
from partita.report.tables.entries import Cited, Interval, MeanStd, Reached, Rounded, Share, latex, plain
from partita.report.tables.table import Table, to_csv, to_latex, to_markdown, to_terminal, to_values

THIRD = 1 / 3
TABLE = Table(
    name="odd",
    title="50 % of a_b & [c]",
    columns=["method", "part", "x|y", "accuracy", "MB", "better"],
    rows=[
        [
            Cited("my_update", "li2020"),
            "a|b",
            12345,
            MeanStd(THIRD, 0.1 + 0.2, is_best=True),
            Rounded(2 * THIRD),
            None,
        ],
        [Cited("plain"), "", 2, MeanStd(2.0), Rounded(1234.56), Interval(-THIRD, -1.0, THIRD)],
        ["text", "", 3, None, Rounded(0.0), Interval(0.5, None, None)],
    ],
    notes=["± 95 % of {all}; 1 < 2 ~ #3^4 \\ $"],
)


def test_csv_has_every_digit_and_a_column_for_each_field_of_an_entry() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(TABLE))))

    assert list(rows[0]) == [
        *("method", "part", "x|y", "accuracy mean", "accuracy std", "accuracy is_best", "MB"),
        *("better value", "better low", "better high"),
    ]
    assert [row["method"] for row in rows] == ["my_update", "plain", "text"]
    assert float(rows[0]["accuracy mean"]) == THIRD
    assert float(rows[0]["accuracy std"]) == 0.1 + 0.2
    assert [row["accuracy is_best"] for row in rows] == ["1", "0", ""]
    assert float(rows[0]["MB"]) == 2 * THIRD
    assert (float(rows[1]["better value"]), float(rows[1]["better high"])) == (-THIRD, THIRD)
    assert (rows[2]["better value"], rows[2]["better low"], rows[0]["better value"]) == ("0.5", "", "")


def test_latex_is_balanced_and_every_row_has_all_columns() -> None:
    text = to_latex(TABLE)

    opened = re.findall(r"\\begin\{(\w+)\}", text)
    assert opened == ["table", "tabular"]
    assert re.findall(r"\\end\{(\w+)\}", text) == opened[::-1]
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0
    rows = [line for line in text.splitlines() if line.endswith(r" \\")]
    assert [len(re.findall(r"(?<!\\)&", row)) for row in rows] == [5] * 4
    (places,) = re.findall(r"\\begin\{tabular\}\{(\w+)\}", text)
    assert places == "llrrrr"
    assert [rule for rule in (r"\toprule", r"\midrule", r"\bottomrule") if text.count(rule) == 1] == [
        *(r"\toprule", r"\midrule", r"\bottomrule"),
    ]


def test_latex_escapes_special_characters() -> None:
    text = to_latex(TABLE)

    assert r"my\_update~\cite{li2020} & a\textbar{}b & $12{,}345$ & $\mathbf{0.3333 \pm 0.3000}$" in text
    assert r"\caption{50 \% of a\_b \& [c]}" in text
    assert r"\#3\textasciicircum{}4 \textbackslash{} \$" in text
    assert r"$\pm$ 95 \% of \{all\}; 1 \textless{} 2 \textasciitilde{}" in text
    assert r"$-0.3333$ $[-1.0000, +0.3333]$" in text
    assert "±" not in text


def test_markdown_keeps_its_columns() -> None:
    head, rule, *rows = [line for line in to_markdown(TABLE).splitlines() if line.startswith("|")]

    assert {len(re.findall(r"(?<!\\)\|", line)) for line in (head, rule, *rows)} == {7}
    assert r"| x\|y |" in head
    assert rule == "| --- | --- | --: | --: | --: | --: |"
    assert rows[0].endswith("| 0.3333 ± 0.3000 * | 0.7 | - |")
    assert rows[1].endswith("| 2.0000 | 1,234.6 | -0.3333 [-1.0000, +0.3333] |")
    assert rows[2].endswith("| +0.5000 |")


def test_small_traffic_is_not_shown_as_none() -> None:
    # 41,490 bytes, and 30 bytes.
    assert [plain(Rounded(0.04149)), latex(Rounded(0.04149))] == ["0.0415", "$0.0415$"]
    assert plain(Reached(0.00003, seeds=1, of=1)) == "0.0000300"
    assert [plain(Rounded(0.0)), latex(Rounded(1234.56))] == ["0.0", "$1234.6$"]


def test_a_terminal_prints_brackets_unchanged() -> None:
    console = Console(width=200, record=True, file=io.StringIO())

    console.print(to_terminal(TABLE))

    text = console.export_text()
    assert "50 % of a_b & [c]" in text
    assert "-0.3333 [-1.0000, +0.3333]" in text


def test_a_table_without_rows_has_its_header() -> None:
    empty = Table(name="none", title="Nothing", columns=["a", "b"], rows=[])

    assert to_csv(empty) == "a,b\n"
    assert r"a & b \\" in to_latex(empty)


def test_every_method_has_a_paper() -> None:
    methods = registry.every()
    text = references(method.citation for method in methods.values())

    for name, method in methods.items():
        assert method.citation is None or text.count(f"{{{method.citation.key},") == 1, name
    assert [name for name, method in methods.items() if method.citation is None] == ["local"]
    assert text.count("{") == text.count("}")
    # Three of them are on arXiv alone.
    assert text.count("@misc{") == 3
    assert text.count("@misc{") + text.count("booktitle") == text.count("@")


WIDE = Table(
    name="wide",
    title="Wide",
    columns=["method", "devices", "rounds to reach it"],
    rows=[
        ["a", Share(2.5, 6), Reached(12.0, 2, 2)],
        ["b", None, Reached(8.25, 1, 3)],
        ["c", Share(1234.0, 2000.0), Reached(None, 0, 3)],
    ],
    shown=["rounds to reach it", "method"],
)


def test_only_csv_and_json_have_the_columns_that_are_not_shown() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(to_terminal(WIDE))

    assert [line for line in to_markdown(WIDE).splitlines() if line.startswith("|")] == [
        "| rounds to reach it | method |",
        "| --- | --- |",
        "| 12 | a |",
        "| 8.2 (1 of 3 seeds) | b |",
        "| not reached | c |",
    ]
    assert r"8.2 (1 of 3 seeds) & b \\" in to_latex(WIDE)
    assert "devices" not in console.export_text() + to_latex(WIDE)
    assert to_csv(WIDE).splitlines() == [
        "method,devices count,devices of,rounds to reach it mean,rounds to reach it seeds",
        "a,2.5,6,12.0,2",
        "b,,,8.25,1",
        "c,1234.0,2000.0,,0",
    ]
    assert to_values(WIDE)["rows"][0]["devices"] == {"count": 2.5, "of": 6}


def test_a_share_is_a_number_of_devices_out_of_another() -> None:
    assert "| a | 2.5 of 6 | 12 |" in to_markdown(replace(WIDE, shown=()))
    assert "| c | 1,234 of 2,000 | not reached |" in to_markdown(replace(WIDE, shown=()))


def lines(table: Table) -> list[str]:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(to_terminal(table))
    return [line.strip() for line in console.export_text().splitlines() if line.strip()]


def test_headings_and_names_of_a_wide_table_take_several_lines_in_the_terminal() -> None:
    narrow = Table(name="x", title="T", columns=["m", "values kept on a device"], rows=[["a", 1]])
    name = "Finetune after continued FedAvg"
    wide = replace(narrow, columns=[*narrow.columns, "x" * 80], rows=[[name, 1, "y"]])

    assert lines(narrow)[1].split() == ["m", "values", "kept", "on", "a", "device"]
    assert [line[:35] for line in lines(wide)[1:4]] == [
        "values", "kept on", "m                          a device",
    ]  # fmt: skip
    assert [line.split("  ")[0] for line in lines(wide)[-2:]] == ["Finetune after continued", "FedAvg"]
