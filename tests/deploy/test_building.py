"""Digests of what a device computes with: all that it computes, and nothing of the server's or of paths."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from partita.config.reading import read_config
from partita.deploy.building import build_for_device, build_for_server, computes_with, differing, for_server
from tables import write

CONFIG = """
seed = 3
[task]
kind = "tabular"
data = "all.parquet"
derived = "derived.json"
[model]
name = "own_building_code:Net"
start = "start.safetensors"
[partition]
personal = "output.*"
[pretrain]
rounds = 2
[personalize]
rounds = 3
[finetune]
epochs = 1
"""
DERIVED = '{"kind": "tabular", "columns": ["a"], "classes": 2, "mean": [0.0], "std": [1.0]}'
CODE = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width: int = 2, scale: float = 1.0):
        super().__init__()
        self.scale = scale
        self.body = torch.nn.Linear(1, width)
        self.output = torch.nn.Linear(width, 2)

    def forward(self, x):
        return self.scale * self.output(self.body(x))
"""
SERVER_CODE = """
from partita.server.optimizers import Averaging

def server(lr: float = 1.0, momentum: float = 0.0):
    return Averaging()

def quiet(folder, values):
    return lambda *line: None
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a config, its files and code of one's own, for devices and for the server."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("own_building_code", "own_server_code"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    rows = [{"device": "ann", "a": float(row), "label": row % 2} for row in range(20)]
    for name in ("all", "ann"):
        write(tmp_path / f"{name}.parquet", rows)
    for name, value in (("start", 1.0), ("same", 1.0), ("other", 2.0)):
        save_file({"body.bias": torch.full((2,), value)}, tmp_path / f"{name}.safetensors")
    (tmp_path / "config.toml").write_text(CONFIG)
    for name in ("derived", "copied"):
        (tmp_path / f"{name}.json").write_text(DERIVED)
    (tmp_path / "own_building_code.py").write_text(CODE)
    (tmp_path / "own_server_code.py").write_text(SERVER_CODE)
    return tmp_path


def digests(folder: Path, overrides: Sequence[str] = ()) -> dict[str, str]:
    """Return what the device `ann` computes with."""
    config = read_config(folder / "config.toml", overrides)
    return computes_with(config, build_for_device(config, folder, "ann"), folder)


def digests_of_server(folder: Path, overrides: Sequence[str] = ()) -> dict[str, str]:
    config = for_server(read_config(folder / "config.toml", overrides))
    return computes_with(config, build_for_server(config, folder), folder)


def test_server_and_device_compute_with_the_same(folder: Path) -> None:
    assert digests_of_server(folder) == digests(folder)


@pytest.mark.parametrize(
    "changes",
    [
        ["pretrain.rounds=7", "personalize.rounds=9"],
        ["pretrain.devices_per_round=3", "personalize.devices_per_round=4"],
        ["pretrain.server_optimizer=adam", "pretrain.server_beta1=0.5"],
        ["pretrain.server_optimizer=own_server_code:server"],
        ["personalize.server_optimizer=own_server_code:server"],
        ["personalize.server_lr=0.5", "personalize.schedule=exponential"],
        ["personalize.over_select=2", "personalize.patience=3", "task.validation=0.0"],
        ["report.watchers=own_server_code:quiet"],
        ["task.data=ann.parquet"],
        ["task.derived=copied.json"],
        ["model.start=same.safetensors"],
        ["evaluate.every=1"],
        ["out=elsewhere", "workers=1"],
    ],
    ids=str,
)
def test_settings_of_the_server_and_paths_do_not_count(folder: Path, changes: list[str]) -> None:
    assert differing(digests(folder), digests(folder, changes)) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("seed=4", "seed"),
        ("task.metrics=accuracy,log_loss", "task"),
        ("personalize.personal_lr=0.7", "personalize"),
        ("personalize.shared_lr=0.7", "personalize"),
        ("personalize.method=fedsim", "personalize"),
        ("personalize.batch_size=3", "personalize"),
        ("pretrain.shared_lr=0.7", "pretrain"),
        ("finetune.personal_lr=0.7", "finetune"),
        ("partition.proximal=0.5", "partition"),
        ("model.scale=3.0", "model"),
        ("model.start=other.safetensors", "start"),
        ("model.start_names={'nothing' = ''}", "start"),
    ],
)
def test_what_a_device_computes_with_counts(folder: Path, change: str, name: str) -> None:
    assert name in differing(digests(folder), digests(folder, [change]))


def test_the_code_that_a_device_runs_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digests(folder)

    (folder / "own_building_code.py").write_text(CODE + "\n# Changed.\n")

    assert differing(before, digests(folder)) == ["code"]
