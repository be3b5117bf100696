"""A run that is killed at any moment and resumed ends with the bits of one that was not."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

COMMAND = Path(sys.executable).parent / "partita"
SETTINGS = ["pretrain.rounds=15", "personalize.rounds=25", "evaluate.every=7", "model.width=4"]


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

    for moment in sorted(draw.sample(range(rounds), 10)):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while rounds_of(killed) < moment or not (killed / "config.toml").exists():
            assert process.poll() is None, "The run ended before it was killed."
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.03))
        process.kill()
        assert process.wait() == -signal.SIGKILL, "The run ended before it was killed."
        command = [COMMAND, "run", "--resume", str(killed)]
    subprocess.run(command, check=True, capture_output=True)

    assert contents(killed) == contents(whole)


def rounds_of(folder: Path) -> int:
    """How many rounds a run has written down so far, its baseline's included."""
    journals = [folder / "rounds.jsonl", folder / "finetune" / "rounds.jsonl"]
    return sum(journal.read_bytes().count(b"\n") for journal in journals if journal.exists())
