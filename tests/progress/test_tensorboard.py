"""TensorBoard reads the content of `rounds.jsonl`, each round once."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from boards import expected, read, same
from partita import Evaluation, FedAlt, FedAvg, Finetuning, Partition, Plan, TensorBoard, Training, pipeline
from partita.errors import ConfigError
from partita.progress.watchers import ignore
from partita.training.pipeline import RoundCallback
from small import affine_devices, affine_task, passing_task

TURNS = 21
"""Rounds of the plan below; an evaluation of six devices is three: 2 + 3, then 4 + 3 + 3, then 3 + 3."""


@pytest.fixture(autouse=True)
def blocks_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate six devices in three rounds."""
    monkeypatch.setattr("partita.training.plan.BLOCK", 2)


class Stop(Exception):
    pass


def do_run(
    folder: Path, *, stop: int | None = None, resume: bool = False, board: RoundCallback | None = None
) -> None:
    devices = affine_devices()
    inputs, targets = devices["d5"]["test"]
    devices["d5"]["test"] = inputs[:1], targets[:1]  # So that blocks have different weights.
    task = affine_task(devices=devices)
    plan = Plan(
        pretrain=Training(method=FedAvg(shared_lr=0.1), rounds=2, devices_per_round=3),
        personalize=Training(method=FedAlt(shared_lr=0.1, personal_lr=0.05), rounds=4, devices_per_round=3),
        finetune=Finetuning(personal_lr=0.05, epochs=1),
        evaluate=Evaluation(every=2),
    )
    watcher = board or TensorBoard(folder)

    def watch(line: Mapping[str, Any], done: int, total: int) -> None:
        assert total == TURNS
        if done == stop:  # After the commit, before the event.
            raise Stop
        watcher(line, done, total)

    pipeline(task, Partition(task.model(), personal="offset"), plan, out=folder, resume=resume, watch=watch)


def test_events_have_the_values_of_the_rounds(tmp_path: Path) -> None:
    do_run(tmp_path / "run")

    events = read(tmp_path / "run")
    assert same(events, expected(tmp_path / "run"))
    assert [step for step, _ in events["personalized/loss"]] == [0, 1, 2, 3]
    assert [step for step, _ in events["personalized/evaluation/metric"]] == [2]
    assert [step for step, _ in events["personalized/final/metric"]] == [4]
    # Three devices are sent the slope, 3 numbers of 4 bytes.
    assert [value for _, value in events["personalized/bytes_down"]] == [36.0] * 4
    assert "pretrained/personal_lr" not in events


@pytest.mark.parametrize("moment", [4, 9, TURNS])
def test_a_resumed_run_writes_every_round_once(moment: int, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        do_run(tmp_path / "run", stop=moment)

    do_run(tmp_path / "run", resume=True)

    if moment == TURNS:  # No round is left to call the watcher for.
        with TensorBoard(tmp_path / "run"):
            pass
    assert same(read(tmp_path / "run"), expected(tmp_path / "run"))


def test_an_event_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        do_run(tmp_path / "run", stop=6)
    (events,) = (tmp_path / "run/tensorboard").iterdir()
    events.write_bytes(events.read_bytes()[:-3])

    do_run(tmp_path / "run", resume=True)

    assert same(read(tmp_path / "run"), expected(tmp_path / "run"))
    assert len(list((tmp_path / "run/tensorboard").iterdir())) == 2


def test_an_interrupted_evaluation_has_no_mean_yet(tmp_path: Path) -> None:
    with pytest.raises(Stop), TensorBoard(tmp_path / "run") as board:
        # The run stops after the second of three blocks of pretraining's end.
        do_run(tmp_path / "run", stop=5, board=board)

    events = read(tmp_path / "run")
    assert [step for step, _ in events["pretrained/loss"]] == [0, 1]
    assert "pretrained/final/metric" not in events


def test_after_early_stopping_no_scalar_goes_back_to_an_earlier_step(tmp_path: Path) -> None:
    task = passing_task()
    method = FedAlt(shared_lr=0.05, personal_lr=0.02, batch_size=4)
    training = Training(method=method, rounds=12, devices_per_round=2, patience=3)

    result = pipeline(
        task,
        Partition(task.model(), personal="offset"),
        Plan(personalize=training),
        out=tmp_path / "run",
        watch=TensorBoard(tmp_path / "run"),
    )

    outcome = result.summary["early_stopping"]["personalized"]
    steps = {tag: [step for step, _ in events] for tag, events in read(tmp_path / "run").items()}
    assert steps["personalized/evaluation/metric"] == list(range(1, outcome["rounds"] + 1))
    assert steps["personalized/final/metric"] == [outcome["best_round"]]
    assert outcome["best_round"] < outcome["rounds"]


def test_events_can_be_written_after_the_run(tmp_path: Path) -> None:
    do_run(tmp_path / "run", board=ignore)

    for _ in range(2):
        with TensorBoard(tmp_path / "run"):
            pass

    assert same(read(tmp_path / "run"), expected(tmp_path / "run"))


def test_without_tensorboard_the_error_names_the_command_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)

    words = r"`report.tensorboard` needs tensorboard: pip install 'partita\[tensorboard\]'\."
    with pytest.raises(ConfigError, match=words):
        TensorBoard(tmp_path)
