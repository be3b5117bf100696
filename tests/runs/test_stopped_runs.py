"""Runs that stop early: interrupted at any moment, they end with the same bits."""

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partita import FedAlt, FedAvg, Finetuning, Partition, Plan, Training, pipeline
from partita.runs.folder import RunFolder
from partita.server.optimizers import Adam
from power import Disk, Image, recorded, restored
from small import passing_task

PLAN = Plan(
    pretrain=Training(
        method=FedAvg(shared_lr=0.1, batch_size=4),
        rounds=8,
        devices_per_round=3,
        patience=2,
        server=Adam(lr=0.4),
    ),
    personalize=Training(
        method=FedAlt(shared_lr=0.05, personal_lr=0.02, batch_size=4),
        rounds=12,
        devices_per_round=2,
        patience=3,
    ),
    finetune=Finetuning(personal_lr=0.1, epochs=1, batch_size=4),
)
# Pretraining stops after round 4, best round 2, and personalization after round 4, best round 1. Evaluations
# take two rounds each, as does fine-tuning.
PRETRAINING, PERSONALIZATION, FINETUNING = 4 * 3 + 2, 4 * 3 + 2, 2 + 2
TURNS = PRETRAINING + PERSONALIZATION + FINETUNING


class Killed(Exception):
    """Stands for a kill at a certain moment."""


@pytest.fixture(scope="module", autouse=True)
def _small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("partita.training.plan.BLOCK", 4)
        yield


def do_run(folder: Path, **options: Any) -> Any:
    task = passing_task()
    return pipeline(task, Partition(task.model(), personal="offset"), PLAN, out=folder, **options)


def contents(folder: Path) -> dict[str, Any]:
    """Every file but the commit, `rounds.jsonl` without `seconds`; without the folder's name."""
    files: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "commit.json"
    }
    files["config.toml"] = RunFolder(folder).config_text.replace(f'name = "{folder.name}"', "")
    lines = [json.loads(line) for line in files["rounds.jsonl"].splitlines()]
    files["rounds.jsonl"] = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    return files


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    """The disk under a whole run, with what a power loss at any moment of it would leave."""
    root = tmp_path_factory.mktemp("disk")
    with recorded(root) as disk:
        do_run(root / "run")
    return disk


@pytest.fixture(scope="module")
def whole(disk: Disk) -> Path:
    return disk.root / "run"


def test_a_stopped_run_leaves_one_file_for_each_device_and_no_checkpoint(whole: Path) -> None:
    outcomes = json.loads((whole / "summary.json").read_text())["early_stopping"]

    assert {stage: (own["rounds"], own["best_round"]) for stage, own in outcomes.items()} == {
        "pretrained": (4, 2),
        "personalized": (4, 1),
    }
    assert len((whole / "rounds.jsonl").read_text().splitlines()) == TURNS
    assert {path.suffix for path in (whole / "personal").iterdir()} == {".safetensors"}
    assert len(list((whole / "personal").iterdir())) == 6
    assert not list(whole.glob("checkpoint-*"))


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(3, marks=pytest.mark.slow),  # Pretraining, after its first measurement.
        pytest.param(11, marks=pytest.mark.slow),  # In the middle of the measurement that ends pretraining.
        12,  # Stopped, and not yet back at the best round.
        pytest.param(13, marks=pytest.mark.slow),  # In the middle of the final evaluation of the best round.
        pytest.param(PRETRAINING, marks=pytest.mark.slow),
        pytest.param(PRETRAINING + 3, marks=pytest.mark.slow),
        PRETRAINING + 4,  # Devices have replaced what they had in the best round.
        pytest.param(PRETRAINING + 10, marks=pytest.mark.slow),
        PRETRAINING + 12,  # Stopped, and not yet back at the best round.
        pytest.param(PRETRAINING + 13, marks=pytest.mark.slow),
        pytest.param(PRETRAINING + PERSONALIZATION, marks=pytest.mark.slow),
        pytest.param(PRETRAINING + PERSONALIZATION + 1, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_killed_around_its_stops_ends_with_the_same_bits(
    moment: int, whole: Path, tmp_path: Path
) -> None:
    counts: list[tuple[int, int]] = []

    def stop(line: Any, done: int, total: int) -> None:
        counts.append((done, total))
        if done == moment:
            raise Killed

    with pytest.raises(Killed):
        do_run(tmp_path / "run", watch=stop)
    do_run(tmp_path / "run", resume=True, watch=lambda line, *count: counts.append(count))

    assert contents(tmp_path / "run") == contents(whole)
    assert [done for done, _ in counts] == list(range(1, TURNS + 1))
    assert counts[-1] == (TURNS, TURNS)


def resumes_with_the_same_bits(
    function: str, call: int, whole: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Stop a run before the n-th call of a function of `os`, and resume it; return whether it got that far."""
    real, calls = getattr(os, function), itertools.count(1)

    def counted(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            raise Killed
        return real(*arguments, **options)

    monkeypatch.setattr(os, function, counted)
    try:
        do_run(folder)
        return False
    except Killed:
        monkeypatch.undo()
    do_run(folder, resume=True)
    assert contents(folder) == contents(whole)
    return True


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("function", ["fsync", "replace", "unlink"])
def test_every_place_at_which_a_run_that_stops_early_can_be_killed(
    function: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.takewhile(
        lambda call: resumes_with_the_same_bits(function, call, whole, tmp_path / f"{call}", monkeypatch),
        itertools.count(1),
    )

    assert len(list(calls)) >= 15


def resumes_after_a_power_loss(image: Image, whole: Path, place: Path) -> None:
    folder = restored(image, place) / "run"
    do_run(folder, resume=True)
    assert contents(folder) == contents(whole)


def test_a_run_that_lost_power_while_it_went_back_ends_with_the_same_bits(
    disk: Disk, whole: Path, tmp_path: Path
) -> None:
    # While devices go back, some copies of the best round are in place and all of them still on disk.
    going_back = [
        image
        for image in disk.images
        if any(name.endswith(".safetensors.tmp") and "/personal/" in name for name in image)
    ]
    assert len(going_back) >= 2

    for number, image in enumerate([going_back[0], going_back[-1]]):
        resumes_after_a_power_loss(image, whole, tmp_path / f"{number}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_moment_at_which_a_run_that_stops_early_can_lose_power(
    disk: Disk, whole: Path, tmp_path: Path
) -> None:
    for number, image in enumerate(disk.images):
        resumes_after_a_power_loss(image, whole, tmp_path / f"{number}")
