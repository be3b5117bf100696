"""Building models: a task's function is called once for each seed, and every model is a copy."""

import gc
import sys
import weakref
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from partita import FedAlt, FedAvg, Finetuning, Partition, Plan, Training, pipeline
from partita.cli import main
from partita.tasks.build import build_model, initial_model
from small import Affine, affine_task, normed_task, same_bits


class CountedModel:
    """A function that builds a model, and counts how often it has."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> nn.Module:
        self.calls += 1
        return Affine()


def test_a_run_builds_its_model_once(tmp_path: Path) -> None:
    model = CountedModel()
    task = affine_task(model=model)
    method = FedAlt(shared_lr=0.1, batch_size=4)
    plan = Plan(
        pretrain=Training(method=FedAvg(shared_lr=0.1, batch_size=4), rounds=1, devices_per_round=2),
        personalize=Training(method=method, rounds=1, devices_per_round=2),
        finetune=Finetuning(epochs=1),
    )

    result = pipeline(task, Partition(Affine(), personal="offset"), plan, out=tmp_path / "run")
    result.model("d0")

    assert model.calls == 1


def test_a_run_from_a_config_builds_its_model_once_and_its_baseline_one_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The baseline is a task of its own: it starts from the pretrained model in the run's folder.
    model, own = CountedModel(), ModuleType("counted")
    own.task, own.model = normed_task, model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "counted", own)
    config = tmp_path / "run.toml"
    rounds = "rounds = 1\ndevices_per_round = 2\nbatch_size = 3\n"
    config.write_text(
        'workers = 1\n[task]\nkind = "counted:task"\n[model]\nname = "counted:model"\n'
        f'[partition]\npersonal = "output"\n[pretrain]\n{rounds}[personalize]\n{rounds}'
        "[finetune]\nepochs = 1\nbaseline = true\n"
    )

    assert main(["run", str(config), f"out={tmp_path / 'run'}"]) == 0

    assert model.calls == 2


def test_models_are_copies_with_the_same_values() -> None:
    task = affine_task(model=Affine)
    one, other = build_model(task, seed=1), build_model(task, seed=1)
    first = {name: tensor.clone() for name, tensor in one.state_dict().items()}

    with torch.no_grad():
        for parameter in one.parameters():
            parameter.add_(1).requires_grad_(False)

    assert same_bits(other.state_dict(), first)
    assert same_bits(build_model(task, seed=1).state_dict(), first)
    assert same_bits(initial_model(task, seed=1).state_dict(), first)
    assert all(parameter.requires_grad for parameter in build_model(task, seed=1).parameters())


def test_another_seed_is_another_model() -> None:
    task = affine_task(model=lambda: nn.Linear(3, 1))

    assert not torch.equal(build_model(task, seed=1).weight, build_model(task, seed=2).weight)


def test_the_initial_model_is_freed_with_its_task() -> None:
    task = affine_task(model=Affine)
    model = weakref.ref(initial_model(task, seed=1))

    del task
    gc.collect()

    assert model() is None
