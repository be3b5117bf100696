"""The first sentence of a run: what further rounds gave and what fine-tuning gave, worked by hand."""

from pathlib import Path
from typing import Any

import pytest

from partita import FedAlt, FedAvg, Finetuning, Partition, Plan, Training, pipeline
from partita.report.differences import Difference
from partita.report.page import Page
from partita.report.run.data import RunData
from partita.report.run.page import run_page
from partita.runs.folder import RunFolder
from report.run.test_page import data_of, finished
from small import Both, point_task

FINETUNE = Finetuning(personal_lr=0.5, epochs=1)


@pytest.fixture
def no_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build pages without the sections below their first sentences: charts take most of the time."""
    monkeypatch.setattr("partita.report.run.page._RunPage._sections", lambda _: iter(()))


def page_of(folder: Path, targets: dict[str, float], **stages: Any) -> Page:
    pipeline(point_task(targets), Partition(Both(), personal="v"), Plan(**stages), out=folder)
    return run_page(RunFolder(folder))


@pytest.mark.usefixtures("no_sections")
def test_rounds_and_fine_tuning_are_told_apart(tmp_path: Path) -> None:
    # u + v begins at 1, and both targets are 3. Each visit: v + 1, then u + 1/2, so that 1/2 is missing.
    # Fine-tuning halves it. The closeness, -|u + v - 3|, goes from -2 to -1/2 to -1/4.
    rounds = Training(method=FedAlt(shared_lr=0.5, personal_lr=0.5), rounds=1, devices_per_round=2)

    page = page_of(tmp_path / "run", {"d0": 3.0, "d1": 3.0}, personalize=rounds, finetune=FINETUNE)

    assert page.answer == (
        "FedAlt, fine-tuned, has a test closeness of -0.2500, 1.7500 better than the model that it began with "
        "(95 % interval +1.7500 to +1.7500, paired over 2 devices and 1 seed): +1.5000 in 1 round, which also "
        "trained the shared part, and +0.2500 by fine-tuning on each device."
    )
    assert page.details == [
        "Of 2 devices: 2 helped, 0 hurt, 0 unchanged.",
        "Whether rounds without a personal part would do the same is not measured here: `partita compare` does that.",
    ]


@pytest.mark.usefixtures("no_sections")
def test_an_interval_that_holds_zero_is_no_clear_difference(tmp_path: Path) -> None:
    # u + v begins at 1. A step at rate 2.5 leaves it for a target of 1; for 5, the error of 4 becomes one of 6.
    page = page_of(
        tmp_path / "run", {"d0": 1.0, "d1": 5.0}, finetune=Finetuning(personal_lr=2.5, epochs=1, batch_size=9)
    )

    assert page.answer.startswith("FT (part.) has a test closeness of")
    assert "no clear difference from the model that it began with (-" in page.answer
    assert page.answer.endswith("1 seed).")


@pytest.mark.usefixtures("no_sections")
def test_a_difference_of_zero_is_not_divided(tmp_path: Path) -> None:
    # u + v begins at the targets: there is nothing to learn.
    page = page_of(tmp_path / "run", {"d0": 1.0, "d1": 1.0}, finetune=FINETUNE)

    assert page.answer == (
        "FT (part.) has a test closeness of 0.0000, no clear difference from the model that it began with "
        "(0.0000, 95 % interval 0.0000 to 0.0000, paired over 2 devices and 1 seed)."
    )


@pytest.mark.usefixtures("no_sections")
def test_more_training_without_a_personal_part_is_called_that(tmp_path: Path) -> None:
    training = Training(method=FedAvg(shared_lr=0.5), rounds=1, devices_per_round=1)
    task = point_task({"d0": 3.0})

    plan = Plan(pretrain=training, personalize=training)
    pipeline(task, Partition(Both()), plan, out=tmp_path / "run")

    # Both u and v move: 1 + 1/2 * 2 * 2 is 3 after the first round, and stays there.
    assert run_page(RunFolder(tmp_path / "run")).answer == (
        "More training without a personal part (LocalSGD) has a test closeness of 0.0000, no clear difference "
        "from FedAvg (0.0000, over 1 device and 1 seed: no interval)."
    )


@pytest.mark.usefixtures("no_sections")
def test_training_without_a_personal_part_is_not_more_where_there_was_none_before(tmp_path: Path) -> None:
    training = Training(method=FedAvg(shared_lr=0.5), rounds=1, devices_per_round=1)

    pipeline(point_task({"d0": 3.0}), Partition(Both()), Plan(personalize=training), out=tmp_path / "run")

    # u + v goes from 1 to the target in one round.
    assert run_page(RunFolder(tmp_path / "run")).answer.startswith(
        "Training without a personal part (LocalSGD) has a test closeness of 0.0000, 2.0000 better than the model"
    )


@pytest.mark.usefixtures("no_sections")
def test_the_result_is_compared_with_the_baseline_that_needs_no_further_rounds(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    data = data_of(folder)
    (baseline,) = [model for model in data.models if model.run is not data.run]
    assert data.last
    found = data.difference(data.last, baseline)
    assert found

    page = run_page(RunFolder(folder))

    own, other = (model.statistics["weighted_mean"] for model in (data.last, baseline))
    assert found.value == pytest.approx(own - other)
    assert page.answer.endswith(
        f"), and not clearly better than Finetune ({other:.4f}), which needs no further rounds."
    )
    assert page.details[-2:] == [
        f"The difference from Finetune: {own - other:+.4f} ({found.interval}).",
        "Whether more rounds of FedAvg alone would do the same is not measured here: `partita compare` does that.",
    ]


@pytest.mark.usefixtures("no_sections")
def test_the_baseline_is_only_surpassed_by_a_clear_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(finished(tmp_path / "run"))
    verdicts = {
        -0.2: "0.2000 worse than",
        -0.05: "no better than",
        0.0: "no better than",
        0.05: "not clearly better than",
        0.2: "0.2000 better than",
    }

    for gain, verdict in verdicts.items():
        found = Difference(value=gain, low=gain - 0.1, high=gain + 0.1, devices=6, seeds=1)
        monkeypatch.setattr(RunData, "difference", lambda *_, found=found: found)

        assert f", and {verdict} Finetune (" in run_page(run).answer


@pytest.mark.usefixtures("no_sections")
def test_unseen_devices_are_reported_with_their_gap_and_their_number(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", evaluate={"unseen": 0.4})
    run = RunFolder(folder)
    own = run.summary["unseen"]["finetuned"]
    rows = [row for row in run.unseen.to_pylist() if (row["stage"], row["split"]) == ("finetuned", "test")]

    page = run_page(run)

    # Every device has four test examples.
    word = "worse" if own["gap"] > 0 else "better"
    assert page.details[-1] == (
        f"On {len(rows)} unseen devices ({4 * len(rows)} test examples) the test closeness is "
        f"{own['weighted_mean']:.4f}, {abs(own['gap']):.4f} {word} than on the {6 - len(rows)} seen "
        "(so few devices tell little about others)."
    )
    assert page.setup == (
        f"compared:plain · 6 devices ({6 - len(rows)} seen, {len(rows)} unseen) · 3 devices per round · 24 test "
        "examples in total"
    )


def test_the_chart_says_that_one_seed_says_nothing_about_others(tmp_path: Path) -> None:
    forest = run_page(RunFolder(finished(tmp_path / "run"))).sections[0].chart

    assert forest
    assert forest.caption.endswith(
        "The intervals are over one seed: they cover other devices like these, not other seeds."
    )
