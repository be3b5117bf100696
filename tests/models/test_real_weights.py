"""Real pretrained weights, where `make pretrained` has brought them."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the extra `hf` is not installed")
pytest.importorskip("peft", reason="the extra `hf` is not installed")

from partita.models.pretrained import Pretrained
from partita.partition.common import common_names
from partita.tasks.model_text import read_tokenizer
from real_weights import GGUF, MODELS, needs
from tables import texts, write

LIMIT = 2_500_000_000
"""Bytes of memory that a process with the model of 135 million parameters may take."""
ALIKE = 100_000_000
"""Bytes by which the memory of two runs may differ that differ in their number of devices alone."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs("smollm2")]
CONFIG = f"""
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
rounds = 1
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


@dataclass(frozen=True)
class Memory:
    """The memory of a run's processes, in bytes."""

    processes: int
    """The number of processes that were seen."""
    peak: int
    """The peak of the largest process."""
    training: int
    """The largest process that was seen after the first round: above it is only the reading of the model."""


def run_with(folder: Path, *, devices: int, workers: int) -> Memory:
    """Train on all devices in another process, which must succeed, and return the memory that it took."""
    folder.mkdir()
    rows = texts(devices=devices, rows=9, split=lambda _, row: "test" if row > 7 else "train")
    write(folder / "texts.parquet", rows)
    (folder / "run.toml").write_text(CONFIG)
    given = [f"personalize.devices_per_round={devices}", f"workers={workers}", "out=run", "--quiet"]
    command = [sys.executable, "-m", "partita", "run", "run.toml", *given]
    environment = {**os.environ, "PARTITA_PRETRAINED": str(MODELS)}

    process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)
    peaks: dict[int, int] = {}
    training = ended = status = 0
    usage: Any = None
    while not ended:
        sizes = sizes_of_session(process.pid)
        peaks |= {pid: size["VmHWM"] for pid, size in sizes.items()}
        if (folder / "run/rounds.jsonl").exists():
            training = max([training, *(size["VmRSS"] for size in sizes.values())])
        time.sleep(0.02)
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    process.returncode = os.waitstatus_to_exitcode(status)  # Otherwise it is taken to be running.

    assert process.returncode == 0
    summary = json.loads((folder / "run/summary.json").read_text())
    assert summary["stages"]["personalized"]["devices"] == devices
    assert sum(path.stat().st_size for path in (folder / "run").rglob("*")) < 10_000_000
    # Also of the workers: the process has waited for the one that waited for them.
    return Memory(len(peaks), max(usage.ru_maxrss * 1024, *peaks.values()), training)


def sizes_of_session(session: int) -> dict[int, dict[str, int]]:
    """Return the memory of all processes of a session, now (`VmRSS`) and at its peak (`VmHWM`), in bytes."""
    found: dict[int, dict[str, int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It has ended.
            if os.getsid(int(folder.name)) == session:
                lines = (line.split() for line in (folder / "status").read_text().splitlines())
                sizes = {
                    line[0].rstrip(":"): int(line[1]) * 1024 for line in lines if line[0].startswith("Vm")
                }
                if "VmRSS" in sizes:
                    found[int(folder.name)] = sizes
    return found


def test_memory_does_not_depend_on_the_number_of_devices(tmp_path: Path) -> None:
    few, many = (run_with(tmp_path / f"of-{devices}", devices=devices, workers=1) for devices in (3, 12))

    assert abs(many.peak - few.peak) < ALIKE
    assert abs(many.training - few.training) < ALIKE
    assert max(few.peak, many.peak) < LIMIT


def test_no_process_of_a_run_with_two_workers_exceeds_the_limit(tmp_path: Path) -> None:
    found = run_with(tmp_path / "run", devices=6, workers=2)

    assert found.processes >= 4  # The run, the one that forks workers, and two of these.
    assert found.peak < LIMIT
