"""The table of failures: who failed, how often and why."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from partita import Evaluation, FedAlt, Finetuning, Partition, Plan, Training, pipeline
from partita.report.run.page import run_page
from partita.report.tables import failures
from partita.report.tables.failures import failures_table
from partita.runs.folder import RunFolder
from small import affine_devices, affine_task, negative_error, square_error


def broken_loss(model: nn.Module, batch: Any) -> Tensor:
    if model.training and len(batch[1]) == 6:
        raise KeyError("weights")
    return square_error(model, batch)


def broken_metric(predictions: Tensor, targets: Tensor) -> float:
    if (targets > 90).any():
        raise ZeroDivisionError("No targets.")
    return negative_error(predictions, targets)


def faulty_run(folder: Path) -> RunFolder:
    """A run in which d1, of 6 examples, cannot be trained, and d4 not be evaluated."""
    devices = affine_devices()
    devices["d4"]["test"][1].fill_(99.0)
    task = affine_task(devices=devices, loss=broken_loss, metrics={"m": broken_metric})
    training = Training(method=FedAlt(shared_lr=0.1), rounds=5, devices_per_round=4, over_select=1)
    plan = Plan(personalize=training, finetune=Finetuning(), evaluate=Evaluation(every=5))
    pipeline(task, Partition(task.model(), personal="offset"), plan, out=folder, on_error="skip")
    return RunFolder(folder)


def test_the_table_has_who_failed_how_often_and_why(tmp_path: Path) -> None:
    run = faulty_run(tmp_path / "run")

    table = failures_table(run)

    lines = list(run.rounds())
    trained = [line for line in lines if line["work"] == "update"]
    asked = sum("d1" in line["asked"] for line in trained)
    rows = {(row["device"], row["stage"], row["asked for"]): row for row in table.records}
    assert set(rows) == {
        ("d1", "personalized", "training"),
        ("d1", "finetuned", "fine-tuning"),
        ("d4", "pretrained", "evaluation"),
        ("d4", "personalized", "evaluation"),
        ("d4", "finetuned", "evaluation"),
    }
    own = rows["d1", "personalized", "training"]
    assert (own["failed"], own["asked"]) == (asked, asked)
    assert str(own["last reason"]).startswith("KeyError: 'weights' (test_failures.py, line ")
    total = sum(len(line["failed"]) for line in lines)
    assert (
        table.title == f"Failed visits: {total} of {sum(len(line['asked']) for line in lines)}, of 2 devices"
    )


def test_the_page_shows_them(tmp_path: Path) -> None:
    page = run_page(faulty_run(tmp_path / "run"))

    (section,) = (section for section in page.sections if section.title == "Failures")
    assert section.table is not None
    visits = page.data["visits"]
    assert {datum["replied"] for datum in visits if datum["device"] == "d1"} == {0}
    assert sum(datum.get("left_out", 0) for datum in visits) > 0


@pytest.mark.slow
def test_a_run_without_failures_has_no_such_table(tmp_path: Path) -> None:
    task = affine_task()
    plan = Plan(personalize=Training(method=FedAlt(shared_lr=0.1), rounds=1, devices_per_round=4))
    pipeline(task, Partition(task.model(), personal="offset"), plan, out=tmp_path / "run")

    assert not failures_table(RunFolder(tmp_path / "run")).rows
    assert "Failures" not in [section.title for section in run_page(RunFolder(tmp_path / "run")).sections]


def test_of_many_failures_the_most_frequent_are_shown(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(failures, "_SHOWN", 2)

    table = failures_table(faulty_run(tmp_path / "run"))

    assert table.records[0]["asked for"] == "training"
    assert len(table.rows) == 2
    assert table.notes[-1] == "The 2 rows with most failures, of 5: the others are in `rounds.jsonl`."
