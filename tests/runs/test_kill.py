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
SETTINGS = ["pretrain.rounds=40", "personalise.rounds=40", "evaluate.every=7", "model.width=4"]


def contents(folder: Path) -> dict[str, Any]:
    files: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("commit.json", "config.toml")
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
    moments = random.Random(20261115)
    command = [COMMAND, "run", *SETTINGS, f"out={killed}"]

    for _ in range(10):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_progress(killed, process)
        time.sleep(moments.uniform(0, 0.2))
        process.kill()
        assert process.wait() == -signal.SIGKILL, "The run ended before it was killed."
        command = [COMMAND, "run", "--resume", str(killed)]
    subprocess.run(command, check=True, capture_output=True)

    assert contents(killed) == contents(whole)


def wait_for_progress(folder: Path, process: subprocess.Popen) -> None:
    """Wait until a new run has its folder, or a resumed one has committed a round."""
    before = progress(folder)
    while progress(folder) == before:
        assert process.poll() is None, "The run ended before it was killed."
        time.sleep(0.005)


def progress(folder: Path) -> list[bytes]:
    """What tells one moment of a run from another."""
    return [path.read_bytes() for path in (folder / "config.toml", folder / "commit.json") if path.exists()]
