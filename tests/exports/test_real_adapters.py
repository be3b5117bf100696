"""An adapter on a base from a GGUF file, opened without Partita as docs/how-to/pretrained.md says."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the extra `hf` is not installed")
pytest.importorskip("peft", reason="the extra `hf` is not installed")

import partita
from opened import OPENINGS, logits_elsewhere, own_logits
from partita.cli import main
from partita.tasks.model_text import read_tokenizer
from real_weights import GGUF, MODELS, needs
from tables import texts, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs("smollm2")]
CONFIG = f"""
workers = 1
[task]
kind = "text"
data = "texts.parquet"
tokenizer = "model"
max_length = 8
[model]
name = "hf"
path = "{MODELS / "smollm2"}"
file = "{GGUF}"
lora = {{ r = 2, targets = ["q_proj", "v_proj"], layers = [-1] }}
[partition]
personal = "lora_b"
[pretrain]
rounds = 0
[personalize]
rounds = 1
devices_per_round = 2
personal_lr = 1.0
shared_lr = 1.0
[finetune]
epochs = 0
"""
SENTENCE = "The capital of France is Paris."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, one device's adapter, its whole model, and the base."""
    folder = tmp_path_factory.mktemp("gguf")
    rows = texts(devices=2, rows=3, split=lambda _, row: "test" if row > 1 else "train")
    write(folder / "texts.parquet", rows)
    (folder / "run.toml").write_text(CONFIG)
    (folder / "smollm2").symlink_to(MODELS / "smollm2")
    assert main(["run", str(folder / "run.toml"), f"out={folder / 'run'}", "--quiet"]) == 0
    assert main(["export", str(folder / "run"), "d1", str(folder / "adapter")]) == 0
    assert main(["export", str(folder / "run"), "d1", str(folder / "whole"), "--merged"]) == 0
    return folder


def tokens() -> torch.Tensor:
    return torch.tensor([read_tokenizer(str(MODELS / "smollm2" / GGUF))(SENTENCE)["input_ids"]])


def test_peft_alone_opens_an_adapter_on_a_gguf_with_the_same_bits(folder: Path) -> None:
    assert all(tensor.any() for tensor in partita.open(folder / "run").personal("d1").values())

    found = logits_elsewhere(OPENINGS["gguf"], {"input_ids": tokens()}, folder)

    assert torch.equal(found, own_logits(folder / "run", "d1", tokens()))


def test_transformers_alone_opens_a_merged_model_that_came_from_a_gguf(folder: Path) -> None:
    found = logits_elsewhere(OPENINGS["whole"], {"input_ids": tokens()}, folder)

    own = own_logits(folder / "run", "d1", tokens())
    assert found.dtype == torch.float32
    assert (found - own).abs().max() < 1e-4 * own.abs().max()


def test_a_merged_model_has_the_tokenizer_of_its_gguf(folder: Path) -> None:
    code = f"""
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("whole")
print(tokenizer({SENTENCE!r})["input_ids"], tokenizer.eos_token_id, tokenizer.bos_token_id)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )

    own = read_tokenizer(str(MODELS / "smollm2" / GGUF))
    assert done.stdout.strip() == f"{own(SENTENCE)['input_ids']} {own.eos_token_id} {own.bos_token_id}"
