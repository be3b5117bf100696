"""The first sentence of a run: what further rounds gave and what fine-tuning gave, worked by hand."""

from pathlib import Path
from typing import Any

import pytest

from partita import FedAlt, FedAvg, Finetuning, Partition, Plan, Training, pipeline
from partita.report.page import Page
from partita.report.run.page import run_page
from partita.runs.folder import RunFolder
from report.run.test_page import data_of, finished
from small import Both, point_task

FINETUNE = Finetuning(personal_lr=0.5, epochs=1)


def page_of(folder: Path, targets: dict[str, float], **stages: Any) -> Page:
    pipeline(point_task(targets), Partition(Both(), personal="v"), Plan(**stages), out=folder)
    return run_page(RunFolder(folder))


def test_rounds_and_fine_tuning_are_told_apart(tmp_path: Path) -> None:
    # u + v begins at 1, and both targets are 3. Each visit: v + 1, then u + 1/2, so that 1/2 is missing.
    # Fine-tuning halves it. The closeness, -|u + v - 3|, goes from -2 to -1/2 to -1/4.
    rounds = Training(method=FedAlt(shared_lr=0.5, personal_lr=0.5), rounds=1, devices_per_round=2)

    page = page_of(tmp_path / "run", {"d0": 3.0, "d1": 3.0}, personalize=rounds, finetune=FINETUNE)

    assert page.answer == (
        "FedAlt, fine-tuned, reaches a test closeness of -0.2500, 1.7500 better than the model that it began with "
        "(95 % interval +1.7500 to +1.7500, paired over 2 devices and 1 seed): +1.5000 in 1 round, which also "
        "trained the shared part, and +0.2500 by fine-tuning on each device."
    )
    assert page.details == [
        "Of 2 devices: 2 helped, 0 hurt, 0 unchanged.",
        "How much of it more rounds without a personal part would give, “partita compare” measures.",
    ]


def test_an_interval_that_holds_zero_is_no_clear_difference(tmp_path: Path) -> None:
    # u + v begins at 1. A step at rate 2.5 leaves it for a target of 1; for 5, the error of 4 becomes one of 6.
    page = page_of(
        tmp_path / "run", {"d0": 1.0, "d1": 5.0}, finetune=Finetuning(personal_lr=2.5, epochs=1, batch_size=9)
    )

    assert page.answer.startswith("FT (part.) reaches a test closeness of")
    assert "no clear difference from the model that it began with (-" in page.answer


def test_more_training_without_a_personal_part_is_called_that(tmp_path: Path) -> None:
    training = Training(method=FedAvg(shared_lr=0.5), rounds=1, devices_per_round=1)
    task = point_task({"d0": 3.0})

    plan = Plan(pretrain=training, personalize=training)
    pipeline(task, Partition(Both()), plan, out=tmp_path / "run")

    # Both u and v move: 1 + 1/2 * 2 * 2 is 3 after the first round, and stays there.
    assert run_page(RunFolder(tmp_path / "run")).answer == (
        "More training without a personal part (LocalSGD) reaches a test closeness of 0.0000, no clear difference "
        "from FedAvg before it (+0.0000, over 1 device and 1 seed: no interval)."
    )


@pytest.mark.usefixtures("no_figures")
def test_the_baseline_is_personalization_without_further_rounds(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    data = data_of(folder)
    (baseline,) = [model for model in data.models if model.run is not data.run]
    assert data.first
    found = data.difference(baseline, data.first)
    assert found

    details = run_page(RunFolder(folder)).details

    assert details[1] == (
        f"Personalization alone, without further rounds (Finetune): {found.compared_with('FedAvg before it')}."
    )
    before, after = (model.statistics["weighted_mean"] for model in (data.first, baseline))
    assert found.value == pytest.approx(after - before)
