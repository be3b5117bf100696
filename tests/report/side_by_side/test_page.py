"""Runs and comparisons side by side: means and paired differences by hand, and what must not be compared."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from compared import ROUNDS, done, values
from partita.cli import main
from partita.config.reading import config_of
from partita.studies import run as runner
from report.run.test_page import ParsedPage, data_sets

pytestmark = pytest.mark.usefixtures("reports")


def finished(folder: Path, **changes: Any) -> Path:
    """A finished run of FedAlt, of seed 3."""
    given = {key: value for key, value in values(**changes).items() if key != "compare"}
    runner.finish(runner.prepare(config_of({**given, "out": str(folder)}), Path()))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run, another one with more rounds, and a comparison of two seeds, of which they have one."""
    place = tmp_path_factory.mktemp("side")
    done(place / "grid", values("finetune", "fedalt"))
    longer = {**ROUNDS, "rounds": 3}
    return [finished(place / "one"), finished(place / "two", personalize=longer), place / "grid"]


@pytest.fixture(scope="module")
def page(folders: list[Path]) -> Path:
    out = folders[0].parent / "page"
    assert main(["report", *map(str, folders), f"out={out}", "--quiet"]) == 0
    return out


def rows_of(page: Path) -> list[dict[str, str]]:
    with (page / "tables/side_by_side.csv").open() as lines:
        return list(csv.DictReader(lines))


def metrics(run: Path, stage: str) -> dict[str, tuple[float, int]]:
    rows = pq.read_table(run / "devices.parquet").to_pylist()
    own = [row for row in rows if (row["stage"], row["split"]) == (stage, "test")]
    return {row["device"]: (row["metric"], row["weight"]) for row in own}


@pytest.mark.slow
def test_every_model_of_every_folder_has_a_row(page: Path) -> None:
    found = [(row["from"], row["model"], row["personal part"]) for row in rows_of(page)]

    titles = ["FedAvg", "FedAlt", "FedAlt, fine-tuned"]
    assert found[:6] == [(name, title, "") for name in ("one", "two") for title in titles]
    assert found[6:] == [
        *(("grid", title, "") for title in ("FedAvg", "Local only", "FedAvg, continued", "Finetune")),
        ("grid", "Finetune after continued FedAvg", ""),
        ("grid", "FedAlt", "output"),
    ]


@pytest.mark.slow
def test_rounds_and_bytes_are_those_behind_each_model(page: Path, folders: list[Path]) -> None:
    rows = rows_of(page)
    with (folders[2] / "tables/methods.csv").open() as lines:
        own = list(csv.DictReader(lines))

    assert [row["rounds"] for row in rows[:6]] == ["2", "4", "4", "2", "5", "5"]
    assert [row["rounds"] for row in rows[6:]] == [row["rounds"] for row in own]
    assert [row["MB up and down"] for row in rows[6:]] == [row["MB up and down"] for row in own]
    # The same training, as a run and as a cell.
    assert float(rows[2]["MB up and down"]) == pytest.approx(float(rows[-1]["MB up and down"]))


@pytest.mark.slow
def test_a_difference_is_paired_over_devices_with_the_last_model_of_the_first_run(
    page: Path, folders: list[Path]
) -> None:
    first, second = (metrics(folder, "finetuned") for folder in folders[:2])
    gains = [(second[device][0] - first[device][0]) * weight for device, (_, weight) in second.items()]
    expected = sum(gains) / sum(weight for _, weight in second.values())

    rows = rows_of(page)

    column = "difference from one: FedAlt, fine-tuned"
    assert float(rows[5][f"{column} value"]) == pytest.approx(expected)
    assert float(rows[5][f"{column} low"]) < expected < float(rows[5][f"{column} high"])
    assert rows[2][f"{column} value"] == ""
    # Seed 3 of the comparison is the same run, to the bit.
    assert float(rows[-1][f"{column} value"]) == 0
    assert (rows[-1]["seeds"], rows[2]["seeds"], rows[2]["devices"]) == ("2", "1", "6")


@pytest.mark.slow
def test_the_page_says_what_is_best_on_what_is_in_common(page: Path, folders: list[Path]) -> None:
    column = "difference from one: FedAlt, fine-tuned value"
    best = max(rows_of(page), key=lambda row: float(row[column] or 0))
    parsed = ParsedPage(page / "report.html")

    (title,), text = parsed.texts["h1"], (page / "report.html").read_text()
    assert title == "one, two and grid"
    # The runs have one of the two seeds of the comparison.
    named = f"{best['from']}: {best['model']}"
    assert f"{named} has the best test closeness of 12 models, over the 1 seed that all have" in text
    assert text.count("The seeds are not the same (1 in one, 1 in two, 2 in grid; 1 in common).") == 1
    assert "never called best" not in text
    assert "have different data" not in text
    models = data_sets(page)["models"]
    reference = float(rows_of(page)[2]["closeness mean"])
    points = [reference + float(row[column] or 0) for row in rows_of(page)]
    assert models["point"] == pytest.approx(sorted(points, reverse=True), rel=1e-4)
    assert models["point"] == pytest.approx(models["mean"], rel=1e-4)


@pytest.mark.slow
def test_the_page_begins_with_the_settings_that_differ(page: Path) -> None:
    with (page / "tables/settings.csv").open() as lines:
        rows = {row["key"]: [row[name] for name in ("one", "two", "grid")] for row in csv.DictReader(lines)}

    # A comparison has no method and no personal part of its own; it evaluates during training.
    assert rows.pop("personalize.rounds") == ["2", "3", "2"]
    assert set(rows) <= {"personalize.method", "partition.personal", "evaluate.every", "evaluate.sample"}


@pytest.mark.usefixtures("no_figures")
def test_other_data_are_not_paired_and_the_first_sentence_says_so(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = finished(tmp_path / "other", task={"kind": "compared:low_rank"}, partition={"personal": "none"})
    monkeypatch.chdir(tmp_path)

    assert main(["report", str(folders[0]), str(other), "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["page"] == "runs/report-1/report.html"
    assert {
        row["difference from one: FedAlt, fine-tuned value"] for row in rows_of(Path("runs/report-1"))[3:]
    } == {""}
    text = Path("runs/report-1/report.html").read_text()
    assert '<p class="answer">other and one have different data (task.kind): they are not comparable' in text
    assert "The best test closeness of each: one: " in text
    devices = data_sets(Path("runs/report-1"))["devices"]["device"]
    assert {"d0", "other: d0"} <= set(devices)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["one", "one"], "`one` is given twice: give each run or comparison once."),
        (
            ["one", "lower"],
            "`one` has test closeness (higher is better) and `lower` has test error (lower is",
        ),
        (["one", "none"], "`none` is not the folder of a run or a comparison: it has no `config.toml`."),
        (["one", "out=page"], "Unknown key `out`."),
        (["one", "two", "baseline=a"], "Unknown key `baseline`. Known keys of `partita report` of several"),
        (["out=page"], "`partita report` needs the folder of a run or a comparison."),
        (["one", "two", "out=two"], "`two` already exists: give another `out`."),
    ],
)
def test_what_cannot_be_put_side_by_side_is_one_line(
    folders: list[Path],
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folders[0].parent)
    if "lower" in arguments and not Path("lower").exists():
        finished(Path("lower"), task={"kind": "compared:worse"})

    assert main(["report", *arguments]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
