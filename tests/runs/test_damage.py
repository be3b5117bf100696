"""Damage to the files of a run: noticed where they are read again, with what can be done."""

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import partita
from partita import Evaluation, FedAlt, FedAvg, Finetuning, Partition, Plan, Training, pipeline
from partita.errors import ConfigError, Damaged
from partita.protocol import key_of
from partita.runs.checking import problems_of
from partita.runs.folder import RunFolder
from partita.runs.journal import FolderJournal
from partita.runs.parts import expected_parts
from partita.runs.tensors import kept_tensors
from partita.runs.warnings import warnings_of
from sealing import change_commit, change_config
from small import affine_task, passing_task

PLAN = Plan(
    pretrain=Training(method=FedAvg(shared_lr=0.1, batch_size=4), rounds=2, devices_per_round=3),
    personalize=Training(method=FedAlt(shared_lr=0.1, batch_size=4), rounds=4, devices_per_round=3),
    finetune=Finetuning(personal_lr=0.1, epochs=1, batch_size=4),
)
PATIENT = Plan(
    personalize=Training(
        method=FedAlt(shared_lr=0.1, personal_lr=0.2, batch_size=4), rounds=9, devices_per_round=2, patience=4
    ),
    evaluate=Evaluation(every=1),
)


class Killed(Exception):
    """Stands for a kill at a certain moment."""


def do_run(folder: Path, *, plan: Plan = PLAN, stop: int = -1, task: Any = None, **options: Any) -> Any:
    task = task or affine_task()

    def watch(line: Any, done: int, total: int) -> None:
        if done == stop:
            raise Killed

    partition = Partition(task.model(), personal="offset")
    return pipeline(task, partition, plan, out=folder, watch=watch, **options)


def stopped(folder: Path, stop: int, **options: Any) -> Path:
    with pytest.raises(Killed):
        do_run(folder, stop=stop, **options)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    do_run(folder)
    return folder


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Two rounds of pretraining, one evaluation, then two rounds of personalization.
    return stopped(tmp_path_factory.mktemp("runs") / "half", 5)


def trained(folder: Path) -> list[str]:
    """The devices with a personal part, in the order of their last rounds."""
    run = RunFolder(folder)
    return list(expected_parts(run.commit or {}, run.lines))


def file_of(folder: Path, device: str) -> Path:
    return folder / f"personal/{key_of(device)}.safetensors"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 4
    path.write_bytes(content)


def test_a_sound_folder_has_no_problems(finished: Path, half: Path) -> None:
    assert problems_of(RunFolder(finished)) == []
    assert problems_of(RunFolder(half)) == []


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flip": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "empty": lambda path: path.write_bytes(b""),
    "delete": Path.unlink,
    "append": lambda path: path.write_bytes(path.read_bytes() + b"x"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_personal_part_names_its_device_and_what_can_be_done(
    damage: str, half: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(half, tmp_path / "run")
    device = trained(folder)[0]
    DAMAGES[damage](file_of(folder, device))

    with pytest.raises(Damaged) as caught:
        do_run(folder, resume=True)

    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"`{file_of(folder, device)}`, the personal part of device '{device}', is ")
    assert line.endswith(
        "Restore it from a copy, or let the device start again: "
        f"`partita run --resume {folder} --reset-device {device}`."
    )
    (problem,) = problems_of(RunFolder(folder))
    assert f"`{file_of(folder, device)}`" in problem


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_model_of_a_finished_run_is_not_built_from_a_damaged_part(
    damage: str, finished: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    DAMAGES[damage](file_of(folder, "d2"))
    result = partita.open(folder, task=affine_task())

    result.model("d1")
    with pytest.raises(Damaged, match="the personal part of device 'd2', is .*Restore it from a copy.$"):
        result.model("d2")


def test_another_device_s_part_and_an_older_one_are_noticed(half: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(half, tmp_path / "run")
    one, other = trained(folder)[:2]
    shutil.copy(file_of(folder, other), file_of(folder, one))
    with pytest.raises(Damaged, match=f"device '{one}', is damaged: it is that of device '{other}'"):
        do_run(folder, resume=True)

    # After one more round, the part of a device that was in both rounds is put back to the first one's.
    folder = shutil.copytree(half, tmp_path / "later")
    before = {device: file_of(folder, device).read_bytes() for device in trained(folder)}
    stopped(folder, 6, resume=True)
    run = RunFolder(folder)
    device = next(d for d, label in run.parts.items() if label == "personalized-2" and d in before)
    file_of(folder, device).write_bytes(before[device])
    with pytest.raises(Damaged, match="it is of the round `personalized-.`, and not of `personalized-2`"):
        do_run(folder, resume=True)
    assert len(problems_of(RunFolder(folder))) == 1


def test_a_part_of_a_device_that_was_not_counted_yet_is_noticed(
    half: Path, finished: Path, tmp_path: Path
) -> None:
    # As after restoring `personal/` from a copy that is newer than the rest of the folder.
    folder = shutil.copytree(half, tmp_path / "run")
    later = next(
        path for path in (finished / "personal").iterdir() if not (half / "personal" / path.name).exists()
    )
    shutil.copy(later, folder / "personal")

    with pytest.raises(Damaged, match="in which no device of that name was counted"):
        do_run(folder, resume=True)
    assert len(problems_of(RunFolder(folder))) == 1


def test_a_part_that_was_lost_between_the_commit_and_its_place_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: Any, label: str, counted: Any, asked: Any) -> None:
        if label == "personalized-0":
            raise Killed

    monkeypatch.setattr("partita.device.store.DiskStore.commit", stop)
    with pytest.raises(Killed):
        do_run(tmp_path / "run")
    monkeypatch.undo()
    assert problems_of(RunFolder(tmp_path / "run")) == []
    next((tmp_path / "run/personal").glob("*.personalized-0.next")).unlink()

    with pytest.raises(Damaged, match="is missing"):
        do_run(tmp_path / "run", resume=True)


def test_a_device_that_is_reset_starts_again_and_the_run_says_so(half: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(half, tmp_path / "run")
    device = trained(folder)[0]
    flip(file_of(folder, device))

    with FolderJournal(RunFolder(folder)) as journal:
        journal.reset([device])

    assert not file_of(folder, device).exists()
    assert device not in RunFolder(folder).parts
    assert problems_of(RunFolder(folder)) == []
    do_run(folder, resume=True)
    run = RunFolder(folder)
    assert problems_of(run) == []
    assert run.resets == [(device, 5)]
    assert f"device '{device}' had lost its personal part and started again after 5 rounds" in warnings_of(
        run
    )
    assert kept_tensors(run, device) is not None


def test_a_reset_that_was_interrupted_is_finished(half: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(half, tmp_path / "run")
    device = trained(folder)[0]
    # The commit is on disk, the file is not deleted yet.
    change_commit(folder, resets=[{"device": device, "rounds": 5}])

    do_run(folder, resume=True)

    with pytest.raises(ConfigError, match="is finished: no device of it can start again"):
        FolderJournal(RunFolder(folder)).reset([device])


def test_only_a_device_of_the_run_can_be_reset(half: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(half, tmp_path / "run")

    with FolderJournal(RunFolder(folder)) as journal, pytest.raises(ConfigError, match="asked a device 'no'"):
        journal.reset(["no"])


def test_copies_of_the_best_round_are_checked_before_devices_go_back(tmp_path: Path) -> None:
    whole = do_run(tmp_path / "whole", plan=PATIENT, task=passing_task())
    best = whole.summary["early_stopping"]["personalized"]["best_round"]
    assert 0 < best < 9
    # Stopped after a training round that comes after the best one.
    folder = stopped(tmp_path / "run", 2 * best + 3, plan=PATIENT, task=passing_task())
    copies = sorted((folder / "personal").glob("*.best"))
    assert copies
    assert problems_of(RunFolder(folder)) == []

    for damage in DAMAGES.values():
        damaged = tmp_path / "damaged"
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(folder, damaged)
        damage(damaged / "personal" / copies[0].name)
        assert problems_of(RunFolder(damaged)), damage
        with pytest.raises(Damaged, match=f"{copies[0].name}`"):
            do_run(damaged, resume=True, plan=PATIENT, task=passing_task())

    do_run(folder, resume=True, plan=PATIENT, task=passing_task())
    assert problems_of(RunFolder(folder)) == []
    assert all(
        path.read_bytes() == (tmp_path / "whole/personal" / path.name).read_bytes()
        for path in (folder / "personal").iterdir()
    )


@pytest.mark.parametrize(
    "name",
    [
        "rounds.jsonl",
        "devices.parquet",
        "summary.json",
        "costs.json",
        "shared/start.safetensors",
        "commit.json",
    ],
)
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "delete"])
def test_files_of_a_finished_run_are_checked_when_it_is_opened(
    name: str, damage: str, finished: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    DAMAGES[damage](folder / name)

    with pytest.raises(Damaged) as caught:
        partita.open(folder, task=affine_task())

    assert f"`{folder / name}` is " in str(caught.value)
    with pytest.raises(Damaged):
        do_run(folder, resume=True)
    assert problems_of(RunFolder(folder))


def test_a_run_of_another_version_is_refused_and_one_of_an_earlier_version_can_be_read(
    finished: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(finished, tmp_path / "other")
    text = (other / "commit.json").read_text()
    (other / "commit.json").write_text(text.replace('"schema": 1', '"schema": 2'))
    with pytest.raises(ConfigError, match="commit.json"):
        partita.open(other)

    earlier = shutil.copytree(finished, tmp_path / "earlier")
    run = RunFolder(finished)
    commit = {
        key: value for key, value in (run.commit or {}).items() if key not in ("schema", "files", "journals")
    }
    (earlier / "commit.json").write_text(json.dumps(commit))
    (earlier / "config.toml").write_text(run.config_text)
    opened = partita.open(earlier, task=affine_task())
    assert opened.summary == run.summary
    assert torch.equal(opened.personal("d1")["offset"], (kept_tensors(run, "d1") or {})["offset"])
    with pytest.raises(ConfigError, match="written by an earlier version of Partita"):
        do_run(earlier, resume=True)
    with pytest.raises(ConfigError, match="earlier version"):
        problems_of(RunFolder(earlier))


def test_a_config_without_its_digest_is_noticed(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    change_config(folder, "seed = 1", "seed = 2")
    assert RunFolder(folder).values["seed"] == 2

    (folder / "config.toml").write_text(RunFolder(folder).config_text)

    with pytest.raises(Damaged, match="config.toml` is damaged: its sha256 is gone"):
        _ = RunFolder(folder).values


def test_only_their_owner_can_read_personal_parts(half: Path, finished: Path) -> None:
    for folder in (half, finished):
        place = folder / "personal"
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o600}
