"""Every block of code and every command of the docs is executed; the site is built, whole, and works offline."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest

import partita
from documents import PAGES, ROOT, Block, blocks_of, execute, forget_modules_in, reader_folder, why_not_run
from partita.config.schema import Config
from reference_pages import FOLDER, written

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
NOT_RUN = [block for block in BLOCKS if "not run" in block.marks]
ELSEWHERE = [block for block in BLOCKS if "executed by" in block.marks]


COMMANDS = (
    "run",
    "compare",
    "tune",
    "report",
    "check",
    "export",
    "predict",
    "onboard",
    "describe",
    "import",
    "config",
    "serve",
    "join",
    "keys",
    "outbox",
    "flower",
)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def reader(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A reader's folder, in which modules of other tests are not found."""
    forget_modules_in(tmp_path_factory.getbasetemp())
    with reader_folder(tmp_path):
        yield


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=name_of)
@pytest.mark.usefixtures("reader")
def test_what_is_on_a_page_runs(page: Path) -> None:
    execute(page, slow=True)


@pytest.mark.slow
@pytest.mark.usefixtures("reader", "reports")
def test_the_report_is_written_as_its_page_says() -> None:
    execute(ROOT / "docs/how-to/read-the-report.md")

    run = Path("runs/forms-1")
    assert (run / "report.html").is_file()
    assert {path.suffix for path in (run / "figures").iterdir()} == {".png", ".svg", ".pdf"}
    assert {path.suffix for path in (run / "tables").iterdir()} == {".csv", ".md", ".tex"}


@pytest.mark.parametrize("block", NOT_RUN, ids=lambda block: block.place)
def test_not_executed(block: Block) -> None:
    pytest.skip(f"{block.place} is not executed: {why_not_run(block, slow=True)}")


@pytest.mark.parametrize("block", ELSEWHERE, ids=lambda block: block.place)
def test_who_executes_a_block_elsewhere_reads_its_page(block: Block) -> None:
    assert block.page in (ROOT / block.marks["executed by"]).read_text()


def test_little_is_not_executed() -> None:
    assert len(NOT_RUN) <= 9
    assert len(BLOCKS) > 60


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_what_a_page_points_to_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="Help texts differ between versions of Python.")
@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=name_of)
def test_the_reference_in_markdown_is_complete_and_current(page: Path) -> None:
    text = page.read_text()

    assert text == written(text), "Write it again with `make reference`."


def test_the_reference_in_markdown_has_every_key_command_and_name() -> None:
    config, told, python = ((FOLDER / f"{name}.md").read_text() for name in ("config", "commands", "python"))

    for entry in fields(Config):
        kind = type(getattr(Config(), entry.name))
        for key in fields(kind) if is_dataclass(kind) else [entry]:
            if key.name not in ("options", "made_with"):
                assert f"| `{key.name}` |" in config, f"{entry.name}.{key.name}"
    assert all(f"## `partita {name}`" in told for name in COMMANDS)
    assert all(f"### `{name}`" in python for name in partita.__all__)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: dead links are errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_every_page(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs") for page in PAGES if page.parent != ROOT}
    built = {site / page.with_suffix(".html") for page in pages if page.name != "README.md"}

    assert built <= set(site.rglob("*.html"))
    assert (site / "decisions/index.html").is_file()


class Loaded(HTMLParser):
    """Collects what a page has its reader's browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = ("src", "srcset", "data", "poster", "href", "xlink:href")
        self.addresses += [value for name, value in attrs if tag != "a" and name in names and value]


def addresses_in(page: Path) -> list[str]:
    text = page.read_text()
    loaded = Loaded()
    if page.suffix == ".html":
        loaded.feed(text)
    return loaded.addresses + re.findall(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""", text)


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")]
    loaded = {(path.name, address) for path in pages for address in addresses_in(path)}

    assert len(loaded) > 100
    assert not [entry for entry in loaded if re.match(r"(https?:)?//", entry[1])]


@pytest.mark.slow
def test_the_search_works_where_pages_are_opened_as_files(site: Path) -> None:
    assert (site / "search/search_index.js").read_text().startswith("var __index = {")
    assert "iframe-worker.js" in (site / "how-to/compare.html").read_text()
    assert (site / "hooks/iframe-worker.js").is_file()


@pytest.mark.slow
def test_the_reference_has_every_key_command_and_name(site: Path) -> None:
    config, told, python = (
        (site / f"reference/{name}.html").read_text() for name in ("config", "commands", "python")
    )

    sections = re.split(r"<h2 id=", config)
    for entry in fields(Config):
        kind = type(getattr(Config(), entry.name))
        text = next((part for part in sections if f"<code>[{entry.name}]</code>" in part[:200]), sections[1])
        for key in fields(kind) if is_dataclass(kind) else [entry]:
            if key.name not in ("options", "made_with"):
                assert f"<code>{key.name}</code>" in text, f"{entry.name}.{key.name}"
    assert all(f"partita {name}</code>" in told for name in COMMANDS)
    assert all(f"<code>{name}</code>" in python for name in partita.__all__)


@pytest.mark.slow
def test_comments_stay_out_of_the_site(site: Path) -> None:
    page = (site / "how-to/own-model.html").read_text()

    assert "what a reader has" not in page
    assert "resnet18.pth" in page
    assert "torch.save" not in page
