"""The configs in `experiments/` can be described without their data, and run with it."""

import json
import os
from pathlib import Path

import pytest

from partita.cli import main
from partita.config.reading import read_config
from partita.describe import describe

ROOT = Path(__file__).parents[2]
SMALL = sorted((ROOT / "experiments/small").glob("*.toml"))
DATA = os.environ.get("PARTITA_DATA", "")


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_a_small_experiment_is_described_without_its_data(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jiwer", reason="the extra `speech` is not installed")
    monkeypatch.delenv("PARTITA_DATA", raising=False)

    described = describe(read_config(path), path.parent)

    assert set(described.partitions) >= {"none", "input", "output", "adapter", "full"}
    assert not any("error" in costs for costs in described.partitions.values())


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
@pytest.mark.skipif(not DATA, reason="$PARTITA_DATA does not say where the tables are")
def test_a_small_experiment_runs(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("jiwer", reason="the extra `speech` is not installed")
    few = ["pretrain.rounds=1", "personalise.rounds=1", "finetune.epochs=1", "evaluate.devices=2"]

    assert main(["run", str(path), *few, f"out={tmp_path / 'run'}"]) == 0

    summary = json.loads((tmp_path / "run/summary.json").read_bytes())
    assert {stage: numbers["devices"] for stage, numbers in summary["stages"].items()} == {
        "pretrained": 2,
        "personalised": 2,
        "finetuned": 2,
    }
