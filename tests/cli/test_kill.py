"""A run that is killed at any moment and resumed ends with the bits of one that was not."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from soak.processes import session
from tables import texts, write

COMMAND = Path(sys.executable).parent / "partita"
SETTINGS = ["pretrain.rounds=15", "personalize.rounds=25", "evaluate.every=7", "model.width=4"]


LORA = """
workers = 1
[task]
kind = "text"
data = "texts.parquet"
tokenizer = "model"
max_length = 6
[model]
name = "hf"
path = "llama"
lora = { r = 2, targets = ["q_proj", "v_proj"], layers = [-1] }
[partition]
personal = "lora_b"
[pretrain]
rounds = 4
devices_per_round = 3
batch_size = 6
[personalize]
method = "fedsim"
rounds = 12
devices_per_round = 3
batch_size = 6
optimizer = "adamw"
shared_lr = 0.01
[finetune]
epochs = 2
batch_size = 6
optimizer = "adamw"
personal_lr = 0.01
"""
OTHER = {"commit.json", "config.toml", "report.html", "figures", "tables"}
"""What says when and where it was made, or how many seconds that took."""


def contents(folder: Path) -> dict[str, Any]:
    files: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not OTHER & {*path.relative_to(folder).parts}
    }
    for name in [name for name in files if name.endswith("rounds.jsonl")]:
        lines = [json.loads(line) for line in files[name].splitlines()]
        files[name] = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    return files


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_ten_kills_at_random_moments_change_no_bit(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([COMMAND, "run", *SETTINGS, f"out={whole}"], check=True, capture_output=True)
    rounds = rounds_of(whole)
    draw = random.Random(20261115)
    command = [COMMAND, "run", *SETTINGS, f"out={killed}"]

    for number, moment in enumerate(sorted(draw.sample(range(rounds), 10))):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while rounds_of(killed) < moment or not (killed / "config.toml").exists():
            assert process.poll() is None, "The run ended before it was killed."
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.03))
        process.kill()
        assert process.wait() == -signal.SIGKILL, "The run ended before it was killed."
        command = [COMMAND, "run", "--resume", str(killed), f"workers={1 + number % 3}"]
    subprocess.run(command, check=True, capture_output=True)

    assert contents(killed) == contents(whole)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kills_change_no_bit_of_a_run_that_trains_lora(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="the extra `hf` is not installed")
    from tiny_models import WORDS, write_llama

    # Enough is computed before the last block that it is kept.
    write_llama(tmp_path / "llama", dim=320)
    columns = {
        "text": lambda device, row: " ".join(WORDS[4 + (5 * device + 7 * row + n) % 12] for n in range(4)),
        "split": lambda _, row: "test" if row > 11 else "train",
    }
    write(tmp_path / "texts.parquet", texts(devices=6, rows=14, **columns))
    (tmp_path / "lora.toml").write_text(LORA)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([COMMAND, "run", tmp_path / "lora.toml", f"out={whole}"], check=True, capture_output=True)
    command = [COMMAND, "run", tmp_path / "lora.toml", f"out={killed}"]

    for number, moment in enumerate((2, 6, 9)):
        kill_after(moment, command, killed)
        command = [COMMAND, "run", "--resume", str(killed), f"workers={1 + number % 2}"]
    subprocess.run(command, check=True, capture_output=True)

    assert contents(killed) == contents(whole)
    assert len(list((whole / "personal").iterdir())) == 6


def kill_after(rounds: int, command: list[Any], folder: Path) -> None:
    """Start a run, and kill it once it has written down so many rounds."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while rounds_of(folder) < rounds or not (folder / "config.toml").exists():
        assert process.poll() is None, "The run ended before it was killed."
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "The run ended before it was killed."


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_a_run_ends_its_workers(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [COMMAND, "run", "model.width=4", "workers=2", f"out={out}"]
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, start_new_session=True, **pipes)
    while rounds_of(out) < 3:
        assert process.poll() is None, "The run ended before it was killed."
        time.sleep(0.01)
    assert len(session(process.pid)) == 4  # The run, its nursery and two workers.

    # Ctrl-C at a terminal signals all processes, the others signal one.
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    _, errors = process.communicate()

    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert errors.endswith(f"partita: Interrupted. Resume with `partita run --resume {out}`.\n")
    assert "Traceback" not in errors
    deadline = time.monotonic() + 30
    while session(process.pid):
        assert time.monotonic() < deadline, "Something is still running."
        time.sleep(0.01)


def rounds_of(folder: Path) -> int:
    """How many rounds a run has written down so far, its baseline's included."""
    journals = [folder / "rounds.jsonl", folder / "finetune" / "rounds.jsonl"]
    return sum(journal.read_bytes().count(b"\n") for journal in journals if journal.exists())
