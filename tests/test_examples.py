"""Every script and notebook in `examples/` runs and prints what it promises."""

import importlib
import inspect
import re
from pathlib import Path

import nbformat
import pytest

from documents import unprinted
from marks import slow_but
from notebooks import executed, texts_of

EXAMPLES = Path(__file__).parents[1] / "examples"

SCRIPTS = {
    "own_model": r"FedAvg: test accuracy 0\.\d\d\nFedAlt: test accuracy 0\.\d\d\ndevice-3 predicts",
    "own_data": r"FedAlt, fine-tuned +0\.\d{4}",
    "own_method": r"LocalAlt: mean squared error 0\.\d{3}\nSharedFirst: mean squared error 0\.\d{3}",
    "resume_and_open": r"interrupted\n20 rounds, 48 rows in devices.parquet\ndevice-03: mean squared error 0\.",
    "compare": r"Local only +0\.\d{4}\n(.*\n)*FedAlt +2\.\* +0\.\d{4}\nFedAlt is worst on device-\d+: 0\.\d{4}\n",
    "fedalt_in_one_file": r"(device-\d\d: mean squared error 0\.\d{3}, variance \d\.\d{3}\n){12}",
}
"""A pattern in the output of each script."""


@pytest.mark.parametrize("name", slow_but(SCRIPTS, "own_model", "own_data", "resume_and_open"))
def test_an_example_prints_what_it_promises(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    example = importlib.import_module(name)

    if "folder" in inspect.signature(example.main).parameters:
        example.main(tmp_path)
    else:
        example.main()

    assert re.search(SCRIPTS[name], capsys.readouterr().out)


def test_every_example_is_executed_and_listed() -> None:
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    listed = re.findall(r"\[`(\w+)\.py`\]\(\1\.py\)", (EXAMPLES / "README.md").read_text())

    assert scripts == set(SCRIPTS) == set(listed)


@pytest.mark.parametrize("name", sorted(set(SCRIPTS) - {"fedalt_in_one_file"}))
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 64


@pytest.mark.slow
def test_the_notebook_shows_what_an_execution_gives(tmp_path: Path) -> None:
    path = EXAMPLES / "rooms.ipynb"
    stored = nbformat.read(path, as_version=4)

    new = executed(path, tmp_path)

    for shown, printed in zip(texts_of(stored), texts_of(new), strict=True):
        assert shown
        assert not unprinted(shown, printed)
    assert [cell.source for cell in new.cells] == [cell.source for cell in stored.cells]
    assert "image/png" in {
        kind for cell in stored.cells for out in cell.get("outputs", ()) for kind in out.get("data", ())
    }


def test_the_notebook_is_small_and_listed() -> None:
    (path,) = EXAMPLES.glob("*.ipynb")

    assert path.stat().st_size < 300_000
    assert f"[`{path.name}`]({path.name})" in (EXAMPLES / "README.md").read_text()
