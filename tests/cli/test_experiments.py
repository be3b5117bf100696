"""The configs in `experiments/` can be described without their data, and run with it."""

import json
import os
import shlex
from pathlib import Path

import pytest

from marks import slow_but
from partita.cli import main
from partita.config.reading import read_config
from partita.studies.describe import describe

ROOT = Path(__file__).parents[2]
SMALL = sorted((ROOT / "experiments/small").glob("*.toml"))
COMPARED = sorted((ROOT / "experiments/compare").glob("*.toml"))
RESULTS = (ROOT / "docs/results.md").read_text().splitlines()
COMMANDS = [line for line in RESULTS if line.startswith("partita compare experiments/compare/")]
DATA = os.environ.get("PARTITA_DATA", "")


@pytest.mark.parametrize(
    "path", slow_but([*SMALL, *COMPARED], SMALL[0]), ids=lambda path: f"{path.parent.stem}-{path.stem}"
)
def test_an_experiment_is_described_without_its_data(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jiwer", reason="the extra `speech` is not installed")
    monkeypatch.delenv("PARTITA_DATA", raising=False)

    described = describe(read_config(path), path.parent)

    assert set(described.partitions) >= {"none", "input", "output", "adapter", "full"}
    assert not any("error" in costs for costs in described.partitions.values())


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
@pytest.mark.skipif(not DATA, reason="$PARTITA_DATA does not say where the tables are")
def test_a_small_experiment_runs(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("jiwer", reason="the extra `speech` is not installed")
    few = ["pretrain.rounds=1", "personalize.rounds=1", "finetune.epochs=1", "evaluate.devices=2"]

    assert main(["run", str(path), *few, f"out={tmp_path / 'run'}"]) == 0

    summary = json.loads((tmp_path / "run/summary.json").read_bytes())
    assert {stage: numbers["devices"] for stage, numbers in summary["stages"].items()} == {
        "pretrained": 2,
        "personalized": 2,
        "finetuned": 2,
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not DATA, reason="$PARTITA_DATA does not say where the tables are")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_results_does_all_its_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jiwer", reason="the extra `speech` is not installed")
    monkeypatch.chdir(ROOT)
    few = ["pretrain.rounds=1", "personalize.rounds=1", "finetune.epochs=1", "evaluate.devices=2"]
    few += [f"{stage}.devices_per_round=1" for stage in ("pretrain", "personalize")]
    few += ["task.devices=4", "seeds=1"]

    assert main([*shlex.split(command)[1:], *few, f"out={tmp_path / 'grid'}", "--json", "--quiet"]) == 0

    outcome = json.loads(capsys.readouterr().out)
    asked = dict(word.split("=", 1) for word in shlex.split(command) if "=" in word)
    assert outcome["failed"] == {}
    assert len(outcome["tables"]["methods"]["rows"]) >= len(asked.get("methods", "").split(","))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not DATA, reason="$PARTITA_DATA does not say where the tables are")
def test_the_comparison_of_a_chat_runs_with_a_small_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("peft", reason="the extra `hf` is not installed")
    from tiny_models import write_llama

    config = str(ROOT / "experiments/pretrained/irc_smollm2.toml")
    small = [f"model.path={write_llama(tmp_path / 'llama')}", "model.file=", "model.lora.layers=[-1]"]
    small += ["task.devices=3", "personalize.devices_per_round=3", "personalize.rounds=1", "workers=1"]

    assert main(["compare", config, *small, f"out={tmp_path / 'grid'}", "--json", "--quiet"]) == 0

    outcome = json.loads(capsys.readouterr().out)
    assert outcome["failed"] == {}
    assert len(outcome["tables"]["methods"]["rows"]) == 4
    summary = json.loads((tmp_path / "grid/cells/fedsim-lora_b-1/summary.json").read_text())
    counts = summary["stages"]["personalized"]
    assert counts["helped"] + counts["hurt"] + counts["same"] == 3


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not DATA, reason="$PARTITA_DATA does not say where the tables are")
def test_the_comparison_of_icons_runs_without_pretrained_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(ROOT / "experiments/pretrained/icons_efficientnet.toml")
    small = ["model.start=", "task.size=32", "task.devices=2", "task.max_examples=8", "workers=1"]
    small += [f"{stage}.rounds=1" for stage in ("pretrain", "personalize")] + ["finetune.epochs=1"]
    small += [f"{stage}.devices_per_round=1" for stage in ("pretrain", "personalize")]

    assert main(["compare", config, *small, f"out={tmp_path / 'grid'}", "--json", "--quiet"]) == 0

    outcome = json.loads(capsys.readouterr().out)
    assert outcome["failed"] == {}
    assert len(outcome["tables"]["methods"]["rows"]) == 9


def test_every_comparison_is_in_the_results() -> None:
    named = {Path(shlex.split(command)[2]).stem for command in COMMANDS}

    assert named == {path.stem for path in COMPARED}
