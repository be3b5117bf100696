"""Runs started in Python: their folder, its report, and opening them again."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partita
from partita import FedAlt, FedAvg, Finetuning, Linear, Partition, Plan, Task, Training, full
from partita.cli import main
from partita.errors import ConfigError
from partita.runs.folder import RunFolder
from partita.runs.tensors import kept_tensors
from small import affine_devices, affine_task, same_bits, square_error


def finished(folder: Path, partition: Any = None) -> tuple[Task, partita.Result]:
    task = affine_task()
    plan = Plan(
        pretrain=Training(
            method=FedAvg(shared_lr=0.1), rounds=2, devices_per_round=3, schedule=Linear(warmup=0.5)
        ),
        personalize=Training(method=FedAlt(shared_lr=0.1, personal_lr=0.2), rounds=2, devices_per_round=3),
        finetune=Finetuning(personal_lr=0.1, epochs=1),
    )
    own = partition or Partition(task.model(), personal="offset")
    return task, partita.pipeline(task, own, plan, out=folder, seed=3)


def test_the_config_of_a_run_from_python_says_what_it_did(tmp_path: Path) -> None:
    finished(tmp_path / "mine")

    values = tomllib.loads((tmp_path / "mine/config.toml").read_text())

    assert (values["name"], values["seed"]) == ("mine", 3)
    assert values["partition"]["personal"] == ["offset"]
    assert values["personalize"]["method"] == "fedalt"
    assert values["personalize"]["personal_lr"] == 0.2
    assert (values["pretrain"]["schedule"], values["pretrain"]["server_optimizer"]) == ("linear", "fedavg")
    assert values["finetune"]["epochs"] == 1
    assert RunFolder(tmp_path / "mine").costs == {
        **json.loads((tmp_path / "mine/costs.json").read_text()),
        "personal": 1,
        "shared": 3,
        "up_bytes": 12,
    }


def test_a_run_from_python_is_opened_with_its_task(tmp_path: Path) -> None:
    task, result = finished(tmp_path / "mine")

    opened = partita.open(tmp_path / "mine", task=task)

    assert opened.summary == result.summary
    assert opened.devices.equals(result.devices)
    assert [line["stage"] for line in opened.rounds] == [line["stage"] for line in result.rounds]
    for device in task.devices:
        assert same_bits(opened.personal(device), result.personal(device))
        assert same_bits(opened.model(device).state_dict(), result.model(device).state_dict())


def test_without_its_task_only_models_are_missing(tmp_path: Path) -> None:
    _, result = finished(tmp_path / "mine")

    opened = partita.open(tmp_path / "mine")

    assert opened.summary == result.summary
    assert same_bits(opened.shared, result.shared)
    assert opened.served("d0") == "personal"
    with pytest.raises(
        ConfigError, match=r"to build its models, give its task, `partita.open\(..., task=...\)`"
    ):
        opened.model("d0")


def test_a_partition_that_is_more_than_names_is_asked_for(tmp_path: Path) -> None:
    own = full(affine_task().model(), proximal=0.5)
    task, result = finished(tmp_path / "mine", own)

    with pytest.raises(ConfigError, match="does not contain its whole partition"):
        partita.open(tmp_path / "mine", task=task).model("d0")
    opened = partita.open(tmp_path / "mine", task=task, partition=own)
    assert same_bits(opened.model("d0").state_dict(), result.model("d0").state_dict())


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("quickstart") / "run"
    short = ["pretrain.rounds=1", "personalize.rounds=1", "finetune.epochs=1", "finetune.baseline=false"]
    assert main(["run", *short, f"out={out}", "--quiet"]) == 0
    return out


@pytest.mark.slow
def test_a_run_from_a_config_is_opened_by_its_folder_alone(quickstart: Path) -> None:
    opened = partita.open(quickstart)

    device = opened.devices["device"][0].as_py()
    kept = kept_tensors(RunFolder(quickstart), device)
    assert kept is not None
    assert same_bits(opened.personal(device), kept)
    state = opened.model(device).state_dict()
    assert same_bits({name: state[name] for name in kept}, kept)


@pytest.mark.slow
@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_models_are_built_where_gradients_are_off(quickstart: Path, without_gradients: Any) -> None:
    device = partita.open(quickstart).devices["device"][0].as_py()
    expected = partita.open(quickstart).model(device)

    with without_gradients():
        model = partita.open(quickstart).model(device)

    assert same_bits(model.state_dict(), expected.state_dict())
    assert all(own.requires_grad and not own.is_inference() for own in model.parameters())


def test_only_finished_runs_are_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no finished run"):
        partita.open(tmp_path)


def test_a_run_from_python_is_resumed_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished(tmp_path / "mine")

    assert main(["run", "--resume", str(tmp_path / "mine")]) == 2

    assert "was started in Python: resume it there, with `resume=True`." in capsys.readouterr().err


def test_seconds_of_a_round_are_the_processor_time_of_its_visits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.process_time", lambda: now)

    def costly_error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal now
        now += 0.25
        return square_error(model, batch)

    task = affine_task(loss=costly_error, devices=affine_devices(2))

    result = partita.run(task, Partition(task.model(), personal="offset"), FedAvg(batch_size=4), rounds=2)

    # Devices with 5 and 6 examples take 2 steps each, with a loss of 0.25 seconds in each step.
    assert [line["seconds"] for line in result.rounds if line["work"] == "update"] == [1.0, 1.0]


def test_settings_for_unreliable_devices_are_used_and_recorded(tmp_path: Path) -> None:
    task = affine_task()
    own = Partition(task.model(), personal="offset")
    robust = partita.Aggregating(aggregation="trimmed_mean", trim=0.3, max_change_norm=2.0)
    options: dict[str, Any] = {"over_select": 2, "aggregating": robust, "max_failed": 0.8, "on_error": "skip"}

    first = partita.run(task, own, FedAlt(shared_lr=0.1), rounds=2, out=tmp_path / "run", **options)
    training = Training(
        method=FedAlt(shared_lr=0.1),
        rounds=2,
        devices_per_round=4,
        over_select=2,
        aggregation="trimmed_mean",
        trim=0.3,
        max_change_norm=2.0,
    )
    second = partita.pipeline(task, own, Plan(personalize=training, max_failed=0.8), on_error="skip")

    values = tomllib.loads((tmp_path / "run/config.toml").read_text())
    assert (values["max_failed"], values["on_error"]) == (0.8, "skip")
    keys = ("devices_per_round", "over_select", "aggregation", "trim", "max_change_norm")
    assert [values["personalize"][key] for key in keys] == [4, 2, "trimmed_mean", 0.3, 2.0]
    assert same_bits(first.shared, second.shared)
    assert [len(line.get("left_out", ())) for line in first.rounds if line["work"] == "update"] == [2, 2]
