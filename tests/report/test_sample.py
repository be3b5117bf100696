"""Pages of many devices draw a fixed sample of them, say so, and have the numbers of all."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from compared import done, values
from marks import slow_but
from partita.config.reading import config_of
from partita.report import sample as sampling
from partita.report.comparison.page import comparison_page
from partita.report.page import Page
from partita.report.run.page import run_page
from partita.report.sample import ALL, MAX_DRAWN, sample_among
from partita.report.side_by_side.page import side_by_side_page
from partita.report.side_by_side.sources import read_source
from partita.runs.folder import RunFolder
from partita.studies import run as runner
from partita.studies.comparison import reopen
from partita.training.plan import Evaluation

DRAWN = 5


def smallest(devices: list[str], count: int) -> set[str]:
    """The devices with the smallest first 8 bytes of their hashes, computed independently."""

    def key(device: str) -> bytes:
        return hashlib.sha256(json.dumps([0, "sample", device]).encode()).digest()[:8]

    return set(sorted(devices, key=key)[:count])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sample")


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    """A run of six devices."""
    given = {key: value for key, value in values().items() if key != "compare"}
    runner.finish(runner.prepare(config_of({**given, "out": str(place / "run")}), Path()))
    return place / "run"


@pytest.fixture(scope="module")
def grid(place: Path) -> Path:
    """A comparison of six devices."""
    done(place / "grid", values("finetune", "fedalt"))
    return place / "grid"


@pytest.fixture
def folders(request: pytest.FixtureRequest, kind: str) -> list[Path]:
    """The folders on a page."""
    names = {"run": ["run"], "comparison": ["grid"], "side by side": ["run", "grid"]}
    return [request.getfixturevalue(name) for name in names[kind]]


def page_of(folders: list[Path], kind: str) -> Page:
    if kind == "run":
        return run_page(RunFolder(folders[0]))
    if kind == "comparison":
        return comparison_page(reopen(folders[0]))
    return side_by_side_page([read_source(folder, folder.name) for folder in folders])


def test_up_to_the_limit_all_devices_are_drawn() -> None:
    found = sample_among(f"d{number}" for number in range(MAX_DRAWN))

    assert (found.devices, found.total, found.note, found.explanation) == (None, MAX_DRAWN, "", "")
    assert "any" in ALL


def test_of_more_devices_those_with_the_smallest_hashes_are_drawn() -> None:
    ids = [f"d{number}" for number in range(MAX_DRAWN + 1000)]

    found = sample_among(reversed(ids))

    assert found.devices == smallest(ids, MAX_DRAWN)
    positions = Evaluation(sample=MAX_DRAWN).sampled(ids)
    assert found.devices == {ids[position] for position in positions}
    assert found.note == " Drawn: a fixed sample of 5,000 of 6,000 devices."


@pytest.mark.parametrize("kind", slow_but(["run", "comparison", "side by side"], "run"))
def test_a_page_draws_the_sample_and_has_the_numbers_of_all_devices(
    folders: list[Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = page_of(folders, kind)
    monkeypatch.setattr(sampling, "MAX_DRAWN", DRAWN)

    page = page_of(folders, kind)

    drawn = smallest(sorted({datum["device"] for datum in whole.data["devices"]}), DRAWN)
    assert {datum["device"] for datum in page.data["devices"]} == drawn
    assert {datum["device"] for datum in page.data.get("visits", [])} <= drawn
    assert page.sample.startswith("Charts of devices and the table of devices show a fixed sample of 5 of 6")
    assert page.details == [*whole.details, page.sample]
    assert (page.answer, page.setup) == (whole.answer, whole.setup)
    assert [table.rows for table in page.tables] == [table.rows for table in whole.tables]
    for name in ("models", "sizes", "rounds"):
        assert page.data.get(name) == whole.data.get(name)


@pytest.mark.parametrize("kind", slow_but(["run", "comparison"], "run"))
def test_captions_say_what_is_drawn_and_have_the_counts_of_all(
    folders: list[Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = captions(page_of(folders, kind))
    monkeypatch.setattr(sampling, "MAX_DRAWN", DRAWN)

    after = captions(page_of(folders, kind))

    assert all("a fixed sample of 5 of 6 devices" in after[name] for name in ("scatter", "violins", "sorted"))
    assert "10th percentile, median and 90th percentile" in after["violins"]
    improved = re.findall(r"improves (\d of \d) devices", before["scatter"])
    assert improved == re.findall(r"improves (\d of \d) devices", after["scatter"])
    assert after["examples"] == before["examples"]


def captions(page: Page) -> dict[str, str]:
    return {chart.name: chart.caption for chart in page.charts}


def test_sizes_count_every_device(run: Path) -> None:
    sizes: Any = page_of([run], "run").data["sizes"]

    # The devices of the task have 5, 6, ..., 10 training examples.
    assert sizes == [{"examples": size, "devices": 1} for size in range(5, 11)]
