"""Texts in tables, for each format."""

import csv
import io

import pytest

from hostile_texts import HOSTILE
from partita.report.tables.entries import Cited
from partita.report.tables.escaping import csv_text, latex_text, markdown_text
from partita.report.tables.table import Table, to_csv, to_html, to_latex, to_markdown

TABLE = Table(
    name="t",
    title="=<script>",
    columns=["+a", "b", "<script>"],
    rows=[["=1+1", -0.5, "<script>"], [Cited("@x"), -1, "-1"], ["\t=1", 0.5, "-1+2"], ["\r=1", None, "+"]],
    notes=["<script>1 & 2</script>"],
)


def test_csv_cells_that_begin_like_a_formula_are_quoted_and_numbers_are_not() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(TABLE))))

    assert rows == [
        ["'+a", "b", "<script>"],
        ["'=1+1", "-0.5", "<script>"],
        ["'@x", "-1", "-1"],
        [r"\x09=1", "0.5", "'-1+2"],
        [r"\x0d=1", "", "'+"],
    ]
    assert TABLE.records[0] == {"+a": "=1+1", "b": -0.5, "<script>": "<script>"}


@pytest.mark.parametrize("text", ["-1", "+0.25", "-1e-7", "-.5", "-3."])
def test_a_text_that_is_a_number_stays_one(text: str) -> None:
    assert csv_text(text) == text


def test_markdown_has_no_html_no_links_and_all_columns() -> None:
    text = to_markdown(TABLE)

    assert "<" not in text
    assert "&lt;script&gt;1 &amp; 2&lt;/script&gt;" in text
    assert markdown_text("[x](javascript:y) ![z]") == r"\[x\](javascript:y) !\[z\]"
    # GitHub's tables read `\|` first, and what is left as Markdown: `\\|` is a backslash and a bar.
    assert markdown_text("\\|") == r"\\\|"


def test_a_table_in_a_notebook_shows_markup_as_text() -> None:
    assert "<script" not in to_html(TABLE)


def test_latex_escapes_what_is_special_and_writes_accents_as_commands() -> None:
    assert latex_text("\\{}~^#$%&_") == (r"\textbackslash{}\{\}\textasciitilde{}\textasciicircum{}\#\$\%\&\_")
    assert latex_text("Ærø, Łódź, naïve, Ştefan") == (r"\AE{}r\o{}, \L{}\'{o}d\'{z}, na\"{\i}ve, \c{S}tefan")
    assert latex_text("дом") == r"\ifdefined\Umathcode дом\else [U+0434][U+043E][U+043C]\fi{}"
    assert latex_text("\x00") == r"\textbackslash{}x00"


def test_a_row_of_latex_does_not_begin_like_an_option_of_the_line_above() -> None:
    table = Table(name="t", title="t", columns=["[a]"], rows=[["[5pt]"], ["*"], ["b"]])

    rows = [line for line in to_latex(table).splitlines() if line.endswith(r" \\")]

    assert rows == [r"{}[a] \\", r"{}[5pt] \\", r"{}* \\", r"b \\"]


def test_no_format_has_a_hidden_character() -> None:
    table = Table(name="t", title=HOSTILE, columns=[HOSTILE], rows=[[HOSTILE]], notes=[HOSTILE])

    for to_text in (to_csv, to_markdown, to_latex, to_html):
        assert all(character.isprintable() or character == "\n" for character in to_text(table)), to_text
