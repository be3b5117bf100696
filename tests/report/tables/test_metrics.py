"""The tables of all metrics, against the rows of devices."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from compared import ROUNDS, done, table, values
from partita.cli import main
from partita.report.models import all_models
from partita.report.tables.entries import MeanStd
from partita.report.tables.metrics import comparison_metrics, run_metrics
from partita.report.write import write_report
from partita.runs.folder import RunFolder
from partita.studies.results import CellResult
from report.run.test_page import ParsedPage, finished
from report.tables.test_comparison import outcome, results

NAMES = ["accuracy", "auroc", "log_loss"]
TASK = {"kind": "synthetic", "form": "mixture", "devices": 6, "examples": 3, "metrics": NAMES}


def recomputed(folder: Path, column: str, stage: str) -> float | None:
    """The weighted mean of a column over the test rows of a stage."""
    every = pq.read_table(folder / "devices.parquet").to_pylist()
    known = [
        (row[column], row["weight"])
        for row in every
        if (row["stage"], row["split"]) == (stage, "test") and row[column] is not None
    ]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("metrics") / "run", task=TASK)


def test_a_run_has_the_weighted_mean_of_every_metric_for_every_model(run: Path) -> None:
    found = run_metrics(RunFolder(run).summary, all_models(RunFolder(run)))

    assert found.columns == ["model", "accuracy", "AUROC", "log loss"]
    folders = {"FedAvg": (run, "pretrained"), "Finetune": (run / "finetune", "finetuned")}
    folders |= {"FedAlt": (run, "personalized"), "FedAlt, fine-tuned": (run, "finetuned")}
    assert [row[0] for row in found.rows] == list(folders)
    for title, *means in found.rows:
        folder, stage = folders[str(title)]
        expected = [recomputed(folder, name, stage) for name in ("metric", "AUROC", "log loss")]
        assert means == pytest.approx(expected)
    assert found.notes[:2] == ["Weighted means over devices.", "Lower is better for log loss."]


def test_a_device_with_one_class_has_no_auroc_and_a_reason(run: Path) -> None:
    rows = pq.read_table(run / "devices.parquet").to_pylist()

    undefined = [row for row in rows if row["AUROC"] is None]
    known = len({row["device"] for row in rows if row["split"] == "test" and row["AUROC"] is not None})
    assert undefined
    assert {row["reason"] for row in undefined} == {"`AUROC`: all targets are of one class"}
    assert {row["reason"] for row in rows if row["AUROC"] is not None} == {None}
    assert all(row["metric"] is not None for row in undefined)
    assert RunFolder(run).summary["stages"]["finetuned"]["metrics"]["AUROC"]["devices"] == known < 6
    notes = run_metrics(RunFolder(run).summary, all_models(RunFolder(run))).notes
    assert notes[2:] == [f"AUROC is defined on {known} of 6 devices."]


@pytest.mark.usefixtures("reports", "no_figures")
def test_the_page_and_the_tables_of_a_run_have_all_metrics(run: Path) -> None:
    write_report(run)

    assert "All metrics" in ParsedPage(run / "report.html").texts["h2"]
    assert (run / "tables/metrics.csv").read_text().startswith("model,accuracy,AUROC,log loss\n")


def test_the_command_prints_all_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["pretrain.rounds=1", "personalize.rounds=0", "finetune.baseline=false", "evaluate.devices=2"]

    assert main(["run", 'task.metrics=["auroc", "macro_f1"]', "model.width=2", *short]) == 0

    out = capsys.readouterr().out
    assert "All metrics on the test split" in out
    assert "AUROC" in out
    assert "macro F1" in out


def test_the_command_says_that_no_device_has_the_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # One example to test has one class.
    task = '[task]\nkind = "synthetic"\nform = "mixture"\ndevices = 3\nexamples = 1\nmetrics = ["auroc"]\n'
    (tmp_path / "own.toml").write_text(
        f"{task}[pretrain]\nrounds = 1\ndevices_per_round = 3\n[personalize]\nrounds = 0\n"
    )

    assert main(["run", str(tmp_path / "own.toml"), f"out={tmp_path / 'run'}", "--quiet"]) == 0

    warnings = capsys.readouterr().out.splitlines()[:2]
    assert warnings[0] == ("Warning: the run has no test AUROC on any device: there is nothing to compare.")
    assert warnings[1].startswith("Warning: 3 devices have no test AUROC (")


def test_one_metric_needs_no_table_of_its_own() -> None:
    older = {"metric": "accuracy", "direction": "up", "split": "test"}

    assert not run_metrics(older, [("FedAvg", {"weighted_mean": 0.5, "devices": 2})]).rows
    assert not run_metrics({**older, "directions": {"accuracy": "up"}}, []).rows
    assert not comparison_metrics(
        results({("", ""): [outcome(0.5, 0.5)]}, directions={"accuracy": "up"})
    ).rows


def with_loss(*losses: float, **changes: Any) -> CellResult:
    """An outcome with a further metric on some of its two devices, of weights 1 and 3."""
    by_device = {
        f"d{n}": (loss, weight) for n, (loss, weight) in enumerate(zip(losses, (1, 3), strict=False))
    }
    return outcome(0.5, 0.75, further={"log loss": {"finetuned": by_device}}, **changes)


def test_a_comparison_marks_the_best_of_each_metric_by_its_direction() -> None:
    given = {
        ("", ""): [with_loss(1.0, 3.0), with_loss(2.0, 4.0)],
        ("finetune", ""): [with_loss(0.5, 0.5), with_loss(0.5, 0.5)],
        ("fedalt", "output"): [with_loss(0.1), with_loss(0.1, 0.1)],
        ("fedsim", "output"): [with_loss(), with_loss()],
    }

    found = comparison_metrics(results(given, directions={"accuracy": "up", "log loss": "down"}))

    accuracy, losses = zip(*(row[2:] for row in found.rows), strict=True)
    assert found.columns == ["method", "personal part", "accuracy", "log loss"]
    assert {entry.is_best for entry in accuracy} == {True}
    # (1 + 9) / 4 and (2 + 12) / 4, with a standard deviation of 1 / sqrt 2.
    assert (losses[0].mean, losses[0].std) == pytest.approx((3.0, 0.5**0.5))
    # FedAlt is 0.4 lower than Finetune on every device that it has.
    assert losses[1] == MeanStd(0.5, 0.0)
    assert losses[2] == MeanStd(pytest.approx(0.1), pytest.approx(0.0), is_best=True)
    assert losses[3] is None
    assert "log loss is undefined on some devices, which its means leave out." in found.notes


@pytest.mark.slow
def test_a_comparison_collects_every_metric_by_device(tmp_path: Path) -> None:
    given: Mapping[str, Any] = values("fedalt", task=TASK, pretrain={**ROUNDS, "rounds": 1})
    folder = tmp_path / "grid"
    done(folder, {**given, "compare": {**given["compare"], "seeds": 1}})

    rows = {row["method"]: row for row in table(folder, "metrics")}
    for title, cell, stage in (
        ("FedAvg", "start-3", "pretrained"),
        ("FedAlt", "fedalt-output-3", "finetuned"),
    ):
        for shown, column in (("accuracy", "metric"), ("AUROC", "AUROC"), ("log loss", "log loss")):
            expected = recomputed(folder / "cells" / cell, column, stage)
            assert float(rows[title][f"{shown} mean"]) == pytest.approx(expected)
