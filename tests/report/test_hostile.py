"""Pages, figures and tables of runs in which every name is hostile: what they show is text."""

import csv
import io
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By

from browser import BROWSER, DRIVER, assert_quiet, at, driver_of
from hostile_texts import HIDDEN, IDS, hostile_comparison, hostile_run
from partita.cli import main
from partita.report.write import write_report, write_side_by_side
from partita.shown import shown, shown_id

pytestmark = [pytest.mark.usefixtures("reports"), pytest.mark.slow]
needs_browser = pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromium-driver")
needs_latex = pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs texlive-latex-recommended")
PREAMBLE = r"\documentclass{article}\usepackage{booktabs}\begin{document}\setlength{\textwidth}{400cm}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run, a comparison, and both side by side, with their reports."""
    place = tmp_path_factory.mktemp("hostile")
    run, compared = hostile_run(place / "run\x1b"), hostile_comparison(place / "=compared")
    for folder in (run, compared):
        write_report(folder)
    page = write_side_by_side([run, compared], str(place / "both"))
    return {"run": run, "comparison": compared, "side by side": page.parent}


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    driver = driver_of()
    yield driver
    driver.quit()


@pytest.mark.parametrize("kind", ["run", "comparison", "side by side"])
def test_no_file_of_a_report_has_a_hidden_character(folders: dict[str, Path], kind: str) -> None:
    files = [folders[kind] / "report.html", *(folders[kind] / "tables").iterdir()]
    figures = [file for file in (folders[kind] / "figures").iterdir() if file.suffix == ".svg"]

    for file in [*files, *figures]:
        text = file.read_bytes().decode()
        if file.suffix == ".html":
            text = text[: text.index("<script>")]  # The libraries have a few of their own.
        assert not set(text) & set(HIDDEN) - set("\n[2J"), file
    for file in figures:
        ElementTree.fromstring(file.read_bytes())
    assert figures
    assert all(file.with_suffix(suffix).stat().st_size for file in figures for suffix in (".png", ".pdf"))


@pytest.mark.parametrize("kind", ["run", "comparison", "side by side"])
def test_tables_have_no_formula_and_no_html(folders: dict[str, Path], kind: str) -> None:
    tables = list((folders[kind] / "tables").iterdir())

    for file in (file for file in tables if file.suffix == ".csv"):
        for cell in (cell for row in csv.reader(io.StringIO(file.read_text())) for cell in row):
            assert not cell.startswith(("=", "@", "\t", "\r")), (file, cell)
            assert not cell.startswith(("+", "-")) or re.fullmatch(r"[-+]?[\d.e+-]+", cell), (file, cell)
    for file in (file for file in tables if file.suffix == ".md"):
        assert not re.search(r"<|(?<!\\)\]\(", file.read_text()), file


@needs_latex
@pytest.mark.parametrize("kind", ["run", "comparison", "side by side"])
def test_latex_tables_compile(folders: dict[str, Path], kind: str, tmp_path: Path) -> None:
    for table in (folders[kind] / "tables").glob("*.tex"):
        assert compiled(table.read_text(), tmp_path), table


@needs_latex
def test_latex_compiles_every_character(tmp_path: Path) -> None:
    from partita.report.tables.table import Table, to_latex

    blocks = [range(0x20, 0x250), range(0x370, 0x500), range(0x2000, 0x2070), range(0x4E00, 0x4E08)]
    blocks += [range(0xFFF0, 0x10000), range(0x1F600, 0x1F604)]
    texts = [chr(code) for block in blocks for code in block] + [
        "[1]",
        "*",
        "\\",
        "--",
        "^^41",
        "a\\\\[b",
        "",
    ]
    rows = [[text, f"a{text}b"] for text in texts]
    pages = [rows[begin : begin + 40] for begin in range(0, len(rows), 40)]
    tables = [Table(name="t", title=own[0][1], columns=own[1], rows=own, notes=own[2]) for own in pages]

    assert compiled("\n".join(map(to_latex, tables)), tmp_path)


def compiled(text: str, folder: Path) -> bool:
    """Whether pdfTeX compiles a text without an error."""
    (folder / "t.tex").write_text(f"{PREAMBLE}\n{text}\n\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "t.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=300)
    return done.returncode == 0


@needs_browser
@pytest.mark.parametrize("kind", ["run", "comparison", "side by side"])
def test_no_script_runs_and_ids_are_shown_escaped(folders: dict[str, Path], kind: str, opened: Any) -> None:
    page = folders[kind] / "report.html"

    browser = at(opened, page)
    buttons = browser.find_elements(By.CSS_SELECTOR, "#devices tbody button")
    for button in buttons[:2]:
        browser.execute_script("arguments[0].click()", button)
    point_at_every_chart(browser)

    assert browser.execute_script("return window.ran") is None
    assert browser.find_elements(By.CSS_SELECTOR, "img, main svg[onload], textarea") == []
    assert_quiet(browser, page)
    texts = {button.get_attribute("textContent") for button in buttons}
    assert {shown_id(device) for device in IDS} <= texts


def point_at_every_chart(browser: Any) -> None:
    """Move the mouse over some marks of every chart, so that their tooltips appear."""
    for mark in browser.find_elements(By.CSS_SELECTOR, ".chart .role-mark path")[::7]:
        if mark.is_displayed() and mark.size["width"] > 0:
            browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
            ActionChains(browser).move_to_element(mark).perform()


def test_the_terminal_shows_hidden_characters_escaped(
    folders: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--resume", str(folders["run"])]) == 0

    printed = capfd.readouterr()
    assert not set(printed.out + printed.err) & set(HIDDEN) - set("\n[2J")
    assert shown("run\x1b") in printed.out
