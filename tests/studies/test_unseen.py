"""Unseen devices in comparisons, searches and forecasts: the same everywhere, and in no choice."""

import statistics
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from compared import done, quiet, table, values
from partita import Devices, Task
from partita.cli import main
from partita.config.building import build
from partita.config.reading import changed, config_of
from partita.data.unseen import is_unseen
from partita.errors import ConfigError
from partita.protocol import Stage
from partita.report.comparison.page import comparison_page
from partita.report.run.page import run_page
from partita.report.tables.entries import Signed
from partita.report.tables.unseen import run_unseen_table
from partita.runs.folder import RunFolder
from partita.runs.warnings import warnings_of
from partita.studies import run as runner
from partita.studies.comparison import Comparison
from partita.studies.forecast import _visits, forecast
from partita.studies.tune import tune
from partita.studies.tuning import begin
from small import affine_devices, affine_task
from tables import split_of, texts, write

pytestmark = pytest.mark.usefixtures("reports")
SEEN, UNSEEN = ["d0", "d2", "d3", "d4"], ["d1", "d5"]


def without_unseen() -> Task:
    devices = affine_devices()
    return affine_task(devices={device: devices[device] for device in SEEN})


def sealed() -> Task:
    """Devices of which the unseen ones may not be read."""
    devices = affine_devices()

    def load(device: str) -> Any:
        assert device in SEEN, "An unseen device was read."
        return devices[device]

    return affine_task(devices=Devices(devices, load=load))


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this module importable by import path, however tests are imported."""
    monkeypatch.setitem(sys.modules, "unseen_tasks", sys.modules[__name__])


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    made, failed = done(tmp_path_factory.mktemp("unseen") / "c", values("fedalt", evaluate={"unseen": 0.3}))
    assert not failed
    return made


@pytest.mark.parametrize(
    ("key", "name"),
    [
        pytest.param("model.start", "shared/pretrained.safetensors", marks=pytest.mark.slow),
        ("task.derived", "derived.json"),
    ],
)
def test_a_file_of_a_run_that_has_seen_these_devices_is_refused(tmp_path: Path, key: str, name: str) -> None:
    table = write(tmp_path / "t.parquet", texts(devices=12, rows=3, split=split_of))
    own = {
        "name": "x",
        "task": {"kind": "text", "data": str(table), "max_length": 4},
        "pretrain": {"rounds": 0},
        "personalize": {"rounds": 0},
        "evaluate": {"unseen": 0.3},
    }
    runner.finish(runner.prepare(config_of(own | {"out": str(tmp_path / "first")}), tmp_path))
    files = {"task.derived": "derived.json", key: name}
    from_run = changed(config_of(own), {key: str(tmp_path / "first" / file) for key, file in files.items()})

    for share in (0.0, 0.3):
        build(changed(from_run, {"evaluate.unseen": share}), tmp_path)
    with pytest.raises(ConfigError, match=f"`{key}`.* `evaluate.unseen` = 0.3, which has seen .* = 0.5"):
        build(changed(from_run, {"evaluate.unseen": 0.5}), tmp_path)


def rows_of(run: RunFolder) -> list[dict[str, Any]]:
    return pq.read_table(run.devices_file).to_pylist()


@pytest.mark.slow
def test_the_same_devices_are_unseen_in_every_cell(comparison: Comparison) -> None:
    assert [device for device in affine_devices() if is_unseen(device, 0.3)] == UNSEEN
    for cell in comparison.cells:
        rows = rows_of(comparison.run_of(cell))
        assert {row["device"] for row in rows if not row["seen"]} == set(UNSEEN)
        assert {row["device"] for row in rows if row["seen"]} == set(SEEN)


@pytest.mark.slow
def test_other_tables_are_as_if_unseen_devices_did_not_exist(comparison: Comparison, tmp_path: Path) -> None:
    done(tmp_path / "c", values("fedalt", task={"kind": "unseen_tasks:without_unseen"}))

    for name in ("methods", "devices", "finetuning"):
        assert table(comparison.folder, name) == table(tmp_path / "c", name)


def test_the_table_has_means_over_seeds_and_their_gaps(comparison: Comparison) -> None:
    shown = {row["method"]: row for row in table(comparison.folder, "unseen")}

    assert list(shown) == ["FedAvg", "Local only", "FedAvg, continued", "FedAlt"]
    for cell in comparison.cells[:4]:
        means: dict[bool, list[float]] = {True: [], False: []}
        for seed in (3, 4):
            (own,) = [c for c in comparison.cells if c.row == cell.row and c.seed == seed]
            rows = [row for row in rows_of(comparison.run_of(own)) if row["split"] == "test"]
            last = [stage for stage in Stage if any(row["stage"] == stage for row in rows)][-1]
            for seen in means:
                some = [row for row in rows if row["stage"] == last and row["seen"] is seen]
                weights = sum(row["weight"] for row in some)
                means[seen].append(sum(row["metric"] * row["weight"] for row in some) / weights)
        row = shown[comparison.methods[cell.method].title]
        gaps = [seen - unseen for seen, unseen in zip(*means.values(), strict=True)]
        for column, numbers in (("seen", means[True]), ("unseen", means[False]), ("gap", gaps)):
            assert float(row[f"{column} mean"]) == pytest.approx(statistics.fmean(numbers))
            assert float(row[f"{column} std"]) == pytest.approx(statistics.stdev(numbers))
        assert row["unseen devices"] == "2"


def test_local_training_trains_an_unseen_device_like_any_other(comparison: Comparison) -> None:
    # It exchanges nothing: with the devices of a block in another order, each has the same model.
    (cell,) = [cell for cell in comparison.cells if cell.title == "Local only" and cell.seed == 3]
    alone = comparison.run_of(cell)
    plain = runner.prepare(cell.config(out=comparison.folder.parent / "plain"), comparison.folder)
    assert plain.config.evaluate.unseen == 0.3
    others = changed(plain.config, {"evaluate.unseen": 0.0, "out": str(alone.path.parent / "all")})
    whole = runner.prepare(others, comparison.folder)
    runner.finish(whole)

    after = [row for row in rows_of(alone) if row["stage"] == "finetuned"]
    expected = [row for row in rows_of(whole.folder) if row["stage"] == "finetuned"]

    by_place = {(row["device"], row["split"]): row["metric"] for row in expected}
    assert {(row["device"], row["split"]): row["metric"] for row in after} == by_place


@pytest.mark.slow
def test_pages_mark_unseen_devices_and_draw_the_others(comparison: Comparison) -> None:
    page, run = comparison_page(comparison), comparison.run_of(comparison.cells[-1])
    for own in (page, run_page(run)):
        assert {datum["device"] for datum in own.data["devices"]} == set(SEEN)
        assert {datum["device"] for datum in own.data["unseen"]} == set(UNSEEN)
        assert sum(datum["devices"] for datum in own.data["sizes"]) == len(SEEN)
        assert all(datum["examples"] for datum in own.data["unseen"])
        assert any(table.name == "unseen" for table in own.tables)


def test_the_table_of_a_run_has_its_stages_and_their_gaps(comparison: Comparison) -> None:
    run = comparison.run_of(comparison.cells[-1])

    rows = run_unseen_table(run).rows

    stages, unseen = run.summary["stages"], run.summary["unseen"]
    assert [row[0] for row in rows] == ["Start", "FedAlt", "FedAlt, fine-tuned"]
    for row, stage in zip(rows, stages, strict=True):
        seen, other = stages[stage]["weighted_mean"], unseen[stage]["weighted_mean"]
        assert row[1:] == [seen, other, Signed(pytest.approx(seen - other)), 4, 2]


@pytest.mark.slow
def test_only_the_table_of_unseen_devices_says_that_they_are_few(comparison: Comparison) -> None:
    few = (
        "Only 2 devices have not been seen by training: the gap depends much on which, set a larger "
        "`evaluate.unseen`."
    )
    run = comparison.run_of(comparison.cells[-1])
    tables = comparison_page(comparison).tables

    assert few in run_unseen_table(run).notes
    assert warnings_of(run) == []
    assert [table.name for table in tables if any("not been seen by" in note for note in table.notes)] == [
        "unseen"
    ]
    assert [few in table.notes for table in tables if table.name == "unseen"] == [True]


def test_a_search_reads_no_unseen_device(tmp_path: Path) -> None:
    given = values(task={"kind": "unseen_tasks:sealed"}, evaluate={"unseen": 0.3})
    given |= {"out": str(tmp_path / "search"), "partition": {"personal": "output"}}
    del given["compare"]

    tuned = tune(begin(given, Path(), {"finetune.personal_lr": [0.01, 0.1]}, 0), on_progress=quiet)

    assert [trial.status for trial in tuned.trials] == ["done", "done"]
    assert {row["device"] for row in rows_of(RunFolder(tmp_path / "search/trial-0"))} == set(SEEN)


def test_a_forecast_counts_the_visits_of_seen_and_unseen_devices() -> None:
    cells = forecast(values(evaluate={"unseen": 0.3}), Path()).cells
    plan = build(cells[1].cell.config(out=Path()), Path()).plan

    passes = plan.finetune.epochs if plan.finetune else 0
    line = {"stage": "finetuned", "work": "finetune"}
    assert _visits(line, plan, cells[1].cell, 4, 2) == 6 * passes
    assert _visits(line | {"work": "evaluate"}, plan, cells[1].cell, 4, 2) == 6


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("evaluate.unseen=1.0", "`unseen` must be at least 0 and below 1, got 1.0."),
        ("evaluate.unseen=0.01", "`evaluate.unseen` = 0.01 leaves none of the 14 devices unseen"),
        ("evaluate.unseen=0.99", "`evaluate.unseen` = 0.99 leaves no device to train on"),
        ("task.unseen=0.1", "Unknown key `task.unseen`. Did you mean `evaluate.unseen`?"),
    ],
)
def test_a_share_that_cannot_be_used_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    override: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["run", override]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not list(tmp_path.iterdir())
