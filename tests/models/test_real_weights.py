"""Real pretrained weights, where `make pretrained` has brought them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the extra `hf` is not installed")
pytest.importorskip("peft", reason="the extra `hf` is not installed")

from partita.models.pretrained import Pretrained
from partita.partition.common import common_names
from partita.tasks.model_text import read_tokenizer
from tables import texts, write

ROOT = Path(__file__).parents[2]
MODELS = Path(os.environ.get("PARTITA_PRETRAINED", ROOT / "pretrained"))
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
LIMIT = 2_500_000_000
"""Bytes of memory that a process with the model of 135 million parameters may take."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (MODELS / "smollm2").exists(), reason="`make pretrained` was not run"),
]
CONFIG = f"""
workers = 1
[task]
kind = "text"
data = "texts.parquet"
tokenizer = "model"
max_length = 16
metrics = ["perplexity", "accuracy"]
[model]
name = "hf"
path = "smollm2"
file = "{GGUF}"
lora = {{ r = 8, targets = ["q_proj", "v_proj"], layers = [-1] }}
[partition]
personal = "lora_b"
[pretrain]
rounds = 0
[personalize]
rounds = 2
devices_per_round = 2
optimizer = "adamw"
personal_lr = 0.001
shared_lr = 0.001
[finetune]
epochs = 0
"""


def test_smollm2_continues_a_sentence_with_what_it_has_learned() -> None:
    tokenizer = read_tokenizer(str(MODELS / "smollm2" / GGUF))
    model = Pretrained(path=str(MODELS / "smollm2"), file=GGUF).eval()

    with torch.no_grad():
        scores = model(torch.tensor([tokenizer("The capital of France is")["input_ids"]]))

    assert tokenizer.decode([int(scores[0, -1].argmax())]) == " Paris"
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008


def test_minilm_classifies_with_a_head_of_its_own() -> None:
    path = str(MODELS / "minilm")
    model = Pretrained(path=path, kind="sequence-classification", classes=4, lora={"targets": ["query"]})

    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}

    assert {name for name in trained if ".lora_" not in name} == set(model.head)
    assert len(common_names(model)) > 90
    assert model(torch.tensor([[101, 7592, 102]])).shape == (1, 4)


@pytest.mark.parametrize("devices", [3, 12])
def test_a_run_with_135_million_parameters_stays_below_its_limit(tmp_path: Path, devices: int) -> None:
    write(
        tmp_path / "texts.parquet",
        texts(devices=devices, rows=9, split=lambda _, row: "test" if row > 7 else "train"),
    )
    (tmp_path / "run.toml").write_text(CONFIG)
    environment = {**os.environ, "PARTITA_PRETRAINED": str(MODELS)}
    command = [sys.executable, "-m", "partita", "run", "run.toml", "out=run", "--quiet"]

    process = subprocess.Popen(command, cwd=tmp_path, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # Otherwise it is taken to be running.

    assert process.returncode == 0
    assert usage.ru_maxrss * 1024 < LIMIT  # It is in kilobytes, of the largest process of the run.
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["stages"]["personalized"]["devices"] == devices
    assert sum(path.stat().st_size for path in (tmp_path / "run").rglob("*")) < 10_000_000
