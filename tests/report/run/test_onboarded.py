"""The page of a run says which devices have joined it since, and what they are served."""

import json
import shutil
from pathlib import Path

import pytest

from exported import finished, rows_of
from partita.cli import main
from partita.report import sample
from partita.report.run.page import run_page
from partita.report.tables.onboarded import onboarded_table
from partita.report.write import write_report
from partita.runs.folder import RunFolder
from partita.runs.onboarded import OnboardedRun
from tables import write

NAMES = {"d4": "d4\x07<b>", "d5": "d5"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run which two devices joined, of which one was personalized again; and as it was before."""
    place = tmp_path_factory.mktemp("onboarded")
    rows = [{**row, "device": NAMES[row["device"]]} for row in rows_of("tabular", range(4, 6))]
    for name, own in (("new", rows), ("more", [row for row in rows if row["device"] == "d5"])):
        write(place / f"{name}.parquet", own)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("partita.report.write.write_report", lambda folder, **_: folder / "report.html")
        folder = finished(place, "tabular")
    shutil.copytree(folder, place / "before")
    assert main(["onboard", str(folder), str(place / "new.parquet"), "--quiet"]) == 0
    assert main(["onboard", str(folder), str(place / "more.parquet"), "--again", "--quiet"]) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> RunFolder:
    """A copy of the run with its onboardings."""
    return RunFolder(shutil.copytree(made, tmp_path / "run"))


def test_the_table_counts_what_devices_have_now(run: RunFolder) -> None:
    # The metrics are those of the onboardings' own summaries; what is held is read from the folder.
    table = onboarded_table(OnboardedRun(run))

    first, second = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    stages = json.loads((run.onboarded_folder / "1/summary.json").read_text())["stages"]
    kept = json.loads((run.onboarded_folder / "2/summary.json").read_text())["kept_previous"]
    assert (first["onboarding"], second["onboarding"]) == ("1", "2, again")
    assert (first["devices"], second["devices"]) == (2, 1)
    assert first["global model"] == stages["pretrained"]["weighted_mean"]
    assert first["personal model"] == stages["finetuned"]["weighted_mean"]
    assert second["have its personal part"] == 1 - len(kept)
    assert first["have its personal part"] == 1 + len(kept)
    assert first["served a personal model"] == 2
    assert first["served the global model"] == 0


@pytest.mark.usefixtures("no_figures")
def test_the_page_lists_devices_that_joined_with_their_ids_escaped(run: RunFolder) -> None:
    page = write_report(run.path).read_text()

    assert "2 devices joined since the run was finished. 1 device was personalized again." in page
    assert {datum["device"] for datum in run_page(run).data["onboarded"]} == {r"d4\x07<b>", "d5"}
    assert (run.tables_folder / "onboarded.csv").read_text().count("\n") == 3


@pytest.mark.slow
def test_of_many_devices_that_joined_a_sample_is_listed(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "MAX_DRAWN", 1)

    data = run_page(run).data["onboarded"]

    assert len({datum["device"] for datum in data}) == 1
    assert {datum["split"] for datum in data} == {"train", "test"}


@pytest.mark.slow
def test_a_run_without_onboarding_has_no_such_section(made: Path) -> None:
    page = run_page(RunFolder(made.parent / "before"))

    assert "Onboarded devices" not in [section.title for section in page.sections]
    assert "onboarded" not in page.data


def test_an_interrupted_onboarding_is_named(run: RunFolder) -> None:
    for name in ("commit.json", "summary.json", "devices.parquet"):
        (run.onboarded_folder / "2" / name).unlink()

    table = onboarded_table(OnboardedRun(run))

    assert len(table.rows) == 1
    assert table.notes[-1] == (
        "Warning: onboarding 2 was interrupted and is not listed: finish it with "
        f"`partita onboard {run.path} --resume`."
    )
