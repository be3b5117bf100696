"""A run's folder, read without changing it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from partita import Evaluation, FedAlt, FedAvg, Finetuning, Partition, Plan, Stage, Training, pipeline, run
from partita.device.roles import build_roles
from partita.device.store import MemoryStore
from partita.errors import ConfigError
from partita.executors.serial import SerialExecutor
from partita.partition import personalization_of
from partita.runs.folder import RunFolder
from partita.runs.tensors import kept_parameters, kept_tensors, shared_tensors
from partita.tasks.build import split_by_stage
from small import affine_task, same_bits


def finished(folder: Path | None, **options: Any) -> Any:
    task = affine_task()
    plan = Plan(
        pretrain=Training(method=FedAvg(shared_lr=0.1), rounds=2, devices_per_round=3),
        personalize=Training(method=FedAlt(shared_lr=0.1), rounds=2, devices_per_round=3),
        finetune=Finetuning(personal_lr=0.1, epochs=1),
    )
    return pipeline(task, Partition(task.model(), personal="offset"), plan, out=folder, **options)


def state_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_reading_changes_nothing(tmp_path: Path) -> None:
    result = finished(tmp_path / "run")
    before = state_of(tmp_path)

    folder = RunFolder(tmp_path / "run")
    assert folder.is_finished
    assert folder.summary == result.summary
    assert [line["round"] for line in folder.rounds() if line["work"] == "update"] == [0, 1, 0, 1]
    assert folder.devices is folder.devices
    assert folder.devices.num_rows == 3 * 6 * 2
    assert same_bits(shared_tensors(folder, Stage.PERSONALIZED), result.shared)
    kept = kept_tensors(folder, "d0")
    assert kept is not None
    assert same_bits(kept, result.personal("d0"))
    assert kept_parameters(folder) == 1
    assert folder.skipped() == []
    assert folder.baseline is None

    assert state_of(tmp_path) == before


def test_a_folder_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")

    assert (folder.exists, folder.is_finished, folder.commit, folder.costs) == (False, False, None, None)
    assert not folder.path.exists()


@pytest.mark.parametrize("name", ["summary", "commit"])
def test_a_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.json").write_text("{")

    with pytest.raises(ConfigError, match=f"{name}.json` is damaged: it is not JSON"):
        _ = getattr(RunFolder(tmp_path), name)


def test_a_result_tells_which_model_a_device_is_served(tmp_path: Path) -> None:
    task = affine_task()
    devices = {device: {**splits, "validation": splits["train"]} for device, splits in task.devices.items()}
    task = affine_task(devices=devices)
    method = FedAlt(shared_lr=0.1, personal_lr=0.1)
    plan = Plan(
        personalize=Training(method=method, rounds=2, devices_per_round=3),
        evaluate=Evaluation(choose="validation"),
    )

    result = pipeline(task, Partition(task.model(), personal="offset"), plan)

    rows = [row for row in result.devices.to_pylist() if row["stage"] == "served"]
    assert {row["device"]: row["model"] for row in rows} == {d: result.served(d) for d in task.devices}
    for device in task.devices:
        which = result.served(device)
        assert same_bits(
            result.model(device, "served").state_dict(), result.model(device, which).state_dict()
        )
    with pytest.raises(ValueError, match="'nobody' was not evaluated"):
        result.served("nobody")


def test_the_global_model_is_the_pretrained_one(tmp_path: Path) -> None:
    result = finished(tmp_path / "run")

    model = result.model("d0", "global")

    assert same_bits(model.state_dict(), shared_tensors(RunFolder(tmp_path / "run"), Stage.PRETRAINED))
    assert not torch.equal(model.offset, result.model("d0").offset)


def test_an_executor_of_the_callers_gives_the_same_bits() -> None:
    task = affine_task()
    own = personalization_of(Partition(task.model(), personal="offset"))
    method, store, entered = FedAlt(shared_lr=0.1), MemoryStore(), []

    class Watched(SerialExecutor):
        def __enter__(self) -> "Watched":
            entered.append("enter")
            return self

        def __exit__(self, *error: Any) -> None:
            entered.append("exit")

    roles = build_roles(split_by_stage(task, own, seed=1), personalize=method)

    mine = run(task, own, method, rounds=3, executor=Watched(task, roles, store, seed=1))

    assert entered == ["enter", "exit"]
    usual = run(task, own, method, rounds=3)
    assert same_bits(mine.shared, usual.shared)
    assert json.dumps(mine.summary) == json.dumps(usual.summary)
    kept = store.load("d0")
    assert kept is not None
    assert same_bits(kept, usual.personal("d0"))
    with pytest.raises(ValueError, match="are where its executor keeps them"):
        mine.personal("d0")
