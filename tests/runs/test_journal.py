"""The run's folder: what is in it, and that a run goes on from any moment with the same bits."""

import itertools
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marks import slow_but
from partita import (
    Evaluation,
    FedAlt,
    FedAvg,
    FedSim,
    Finetuning,
    Partition,
    Personalization,
    Plan,
    Training,
    pipeline,
)
from partita.data.rows import SkippedRow, SkippedRows, read_skipped
from partita.device.store import DiskStore
from partita.errors import ConfigError, InUse
from partita.protocol import Stage
from partita.runs.folder import RunFolder
from partita.runs.journal import FolderJournal
from partita.server.optimizers import Adam
from partita.server.round import State
from partita.training.journal import Commit
from power import Disk, Image, recorded, restored
from small import affine_devices, affine_task

PLAN = Plan(
    pretrain=Training(
        method=FedAvg(shared_lr=0.1, batch_size=4), rounds=3, devices_per_round=3, server=Adam(lr=0.05)
    ),
    personalize=Training(method=FedAlt(shared_lr=0.1, batch_size=4), rounds=3, devices_per_round=3),
    finetune=Finetuning(personal_lr=0.1, epochs=1, batch_size=4),
    evaluate=Evaluation(every=2),
)
TURNS = 3 + 2 + 3 + 2 + 1 + 1


class Killed(Exception):
    """Stands for a kill at a certain moment."""


def do_run(
    folder: Path | None,
    *,
    plan: Plan = PLAN,
    count: int = 6,
    seed: int = 1,
    claims: Any = None,
    **options: Any,
) -> None:
    task = affine_task(devices=affine_devices(count))
    named = {"personal": "offset"} | (claims or {})
    penalty = named.pop("penalty", None)
    partition = Personalization(Partition(task.model(), **named), penalty=penalty)
    pipeline(task, partition, plan, seed=seed, out=folder, **options)


def contents(folder: Path) -> dict[str, Any]:
    """What the promise of the same bits covers: every file, `rounds.jsonl` without `seconds`; without the name.

    `commit.json` has the digest of `rounds.jsonl`, with the seconds.
    """
    files: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "commit.json"
    }
    config = RunFolder(folder).config_text
    files["config.toml"] = config.replace(f'name = "{folder.name}"', "")
    lines = [json.loads(line) for line in files["rounds.jsonl"].splitlines()]
    files["rounds.jsonl"] = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    return files


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    do_run(folder)
    return folder


def test_the_folder_is_as_the_design_says(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == {
        "config.toml",
        "costs.json",
        "rounds.jsonl",
        "devices.parquet",
        "summary.json",
        "shared",
        "personal",
        "commit.json",
    }
    assert {path.name for path in (whole / "shared").iterdir()} == {
        "pretrained.safetensors",
        "personalized.safetensors",
        "start.safetensors",
    }
    assert (
        len(list((whole / "personal").glob("*.safetensors")))
        == len(list((whole / "personal").iterdir()))
        == 6
    )
    commit = json.loads((whole / "commit.json").read_text())
    assert (commit["stage"], commit["finished"]) == ("finetuned", True)
    assert len(commit["shared"]["digest"]) == len(commit["optimizer"]["digest"]) == 64


def test_a_line_says_all_of_a_round(whole: Path) -> None:
    lines = [json.loads(line) for line in (whole / "rounds.jsonl").read_text().splitlines()]

    assert len(lines) == TURNS
    update = lines[0]
    assert update["stage"] == "pretrained"
    assert update["round"] == 0
    assert update["shared_lr"] == 0.1
    assert update["personal_lr"] is None
    assert len(update["asked"]) == len(update["heard"]) == 3
    assert update["failed"] == {}
    assert update["bytes"] == {"down": 3 * 16, "up": 3 * 16}
    assert update["loss"] > 0
    assert update["seconds"] >= 0


def test_the_same_seed_gives_the_same_folder(whole: Path, tmp_path: Path) -> None:
    do_run(tmp_path / "again")

    assert contents(tmp_path / "again") == contents(whole)


@pytest.mark.parametrize("moment", slow_but(range(1, TURNS), 1, 5, 9))
def test_a_run_that_stopped_after_a_commit_goes_on_with_the_same_bits(
    moment: int, whole: Path, tmp_path: Path
) -> None:
    def stop(line: Any, done: int, total: int) -> None:
        assert total == TURNS
        if done == moment:
            raise Killed

    with pytest.raises(Killed):
        do_run(tmp_path / "run", watch=stop)
    do_run(tmp_path / "run", resume=True)

    assert contents(tmp_path / "run") == contents(whole)


def stop_at(name: str, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop before the n-th call of a function of `os` that makes a change last: what came before is done."""
    calls = 0
    real = getattr(os, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, counted)


def resumes_with_the_same_bits(
    function: str, call: int, whole: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Stop a run at one call, resume it and compare; return whether the run got that far."""
    stop_at(function, call, monkeypatch)
    try:
        do_run(folder)
        return False
    except Killed:
        monkeypatch.undo()
    do_run(folder, resume=True)
    assert contents(folder) == contents(whole)
    return True


# A whole run calls fsync 127 times, replace 45 and unlink 15 times.
SOME_CALLS = {"fsync": [1, 2, 3, 13, 34, 80, 127], "replace": [1, 2, 3, 8, 21, 45], "unlink": [1, 2, 8, 15]}


@pytest.mark.parametrize(
    ("function", "call"),
    [
        pytest.param(name, call, marks=[] if call == calls[1] else [pytest.mark.slow])
        for name, calls in SOME_CALLS.items()
        for call in calls
    ],
)
def test_a_run_that_stopped_in_the_middle_of_a_commit_goes_on_with_the_same_bits(
    function: str, call: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resumes_with_the_same_bits(function, call, whole, tmp_path / "run", monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("function", ["fsync", "replace", "unlink"])
def test_every_place_at_which_a_run_can_stop(
    function: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.takewhile(
        lambda call: resumes_with_the_same_bits(function, call, whole, tmp_path / f"{call}", monkeypatch),
        itertools.count(1),
    )

    assert len(list(calls)) >= 15


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    """The disk under a whole run, with what a power loss at any moment of it would leave."""
    root = tmp_path_factory.mktemp("disk")
    with recorded(root) as disk:
        do_run(root / "run")
    return disk


def resumes_after_a_power_loss(image: Image, whole: Path, place: Path) -> None:
    folder = restored(image, place) / "run"
    do_run(folder, resume=True)
    assert contents(folder) == contents(whole)


@pytest.mark.parametrize("moment", slow_but([0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0], 0.0, 0.4, 0.8))
def test_a_run_that_lost_power_goes_on_with_the_same_bits(
    moment: float, disk: Disk, whole: Path, tmp_path: Path
) -> None:
    resumes_after_a_power_loss(disk.images[int(moment * (len(disk.images) - 1))], whole, tmp_path / "disk")


def test_a_finished_run_is_on_disk_as_a_whole(disk: Disk) -> None:
    written = {
        str(path.relative_to(disk.root)): path.read_bytes() for path in disk.root.rglob("*") if path.is_file()
    }

    assert {name: disk.synced()[name] for name in written} == written


def test_bad_rows_are_on_disk_with_the_round_that_found_them(tmp_path: Path) -> None:
    folder, skipped = RunFolder(tmp_path / "run"), SkippedRows()
    commit = Commit(number=0, stage=Stage.PRETRAINED, round=0, label="", counted=[], asked=[], steps=0)
    bad = SkippedRow("a.parquet", 3, "ann", "`text` is empty")

    with recorded(tmp_path) as disk, FolderJournal(folder) as journal:
        skipped.log_to(folder.skipped_file)
        skipped.add(bad)
        journal.commit(commit, State(shared={}, optimizer={}), {}, [])

    assert read_skipped(folder.skipped_file) == [bad]
    assert disk.synced()["run/skipped.jsonl"] == folder.skipped_file.read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_moment_at_which_a_run_can_lose_power(disk: Disk, whole: Path, tmp_path: Path) -> None:
    for number, image in enumerate(disk.images):
        resumes_after_a_power_loss(image, whole, tmp_path / f"{number}")


def test_a_commit_whose_personal_parts_have_not_moved_is_finished_first(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stopped right after the commit of a personalizing round, before any `.next` is in its place.
    commits = 0
    commit = DiskStore.commit

    def stop(self: DiskStore, label: str, counted: Any, asked: Any) -> None:
        nonlocal commits
        commits += label.startswith("personalized") and bool(counted)
        if commits == 2:
            raise Killed
        commit(self, label, counted, asked)

    monkeypatch.setattr(DiskStore, "commit", stop)
    with pytest.raises(Killed):
        do_run(tmp_path / "run")
    monkeypatch.undo()
    assert list((tmp_path / "run/personal").glob("*.personalized-1.next"))

    do_run(tmp_path / "run", resume=True)

    assert contents(tmp_path / "run") == contents(whole)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 2}, "other values of `seed`"),
        ({"plan": replace(PLAN, finetune=None)}, "other values of `finetune`"),
        (
            {"plan": replace(PLAN, personalize=replace(PLAN.personalize, method=FedSim(shared_lr=0.1)))},
            "other values of `personalize`",
        ),
        ({"claims": {"personal": "slope.*"}}, "other values of `partition`"),
        ({"claims": {"penalty": lambda model: model.offset.square().sum()}}, "other values of `partition`"),
        ({"count": 5}, "other values of `devices`"),
    ],
)
def test_another_run_is_no_continuation(changes: dict, words: str, whole: Path, tmp_path: Path) -> None:
    def stop(line: Any, done: int, total: int) -> None:
        if done == 4:
            raise Killed

    with pytest.raises(Killed):
        do_run(tmp_path / "run", watch=stop)
    shutil.copytree(whole, tmp_path / "finished")

    for folder in ("run", "finished"):
        with pytest.raises(ConfigError, match=words):
            do_run(tmp_path / folder, resume=True, **changes)


def test_a_record_that_lost_its_commit_is_not_gone_on_with(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "copy")
    (tmp_path / "copy/commit.json").write_text('{"number": ')
    with pytest.raises(ConfigError, match="commit.json` is damaged"):
        do_run(tmp_path / "copy", resume=True)

    (tmp_path / "copy/commit.json").unlink()
    with pytest.raises(ConfigError, match="commit.json` is missing"):
        do_run(tmp_path / "copy", resume=True)


def test_resuming_a_finished_run_changes_nothing(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "copy")

    do_run(tmp_path / "copy", resume=True)

    assert contents(tmp_path / "copy") == contents(whole)


def test_lines_past_the_commit_are_cut(whole: Path, tmp_path: Path) -> None:
    def stop(line: Any, done: int, total: int) -> None:
        if done == 4:
            raise Killed

    with pytest.raises(Killed):
        do_run(tmp_path / "run", watch=stop)
    with (tmp_path / "run/rounds.jsonl").open("a") as file:
        file.write('{"stage": "pretr')
    do_run(tmp_path / "run", resume=True)

    assert contents(tmp_path / "run") == contents(whole)


def test_a_damaged_checkpoint_is_noticed(tmp_path: Path) -> None:
    def stop(line: Any, done: int, total: int) -> None:
        if done == 2:
            raise Killed

    with pytest.raises(Killed):
        do_run(tmp_path / "run", watch=stop)
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*-shared.safetensors")
    content = bytearray(checkpoint.read_bytes())
    content[-1] ^= 1
    checkpoint.write_bytes(content)

    with pytest.raises(ConfigError, match="not the one that was committed"):
        do_run(tmp_path / "run", resume=True)


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    for name in ("checkpoint-best.pt", "notes.tmp", "rounds.jsonl"):
        (tmp_path / name).write_text("mine")

    with pytest.raises(ConfigError, match="is not a run's folder: it contains `checkpoint-best.pt`"):
        do_run(tmp_path, resume=True)

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("checkpoint-best.pt", "notes.tmp", "rounds.jsonl"), "mine"
    )


def test_going_on_needs_a_folder() -> None:
    with pytest.raises(ValueError, match="`resume=True` needs `out`"):
        do_run(None, resume=True)


def test_two_processes_cannot_write_one_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")

    with FolderJournal(folder), pytest.raises(InUse, match="Another process"):
        FolderJournal(folder)

    with FolderJournal(folder):
        pass
