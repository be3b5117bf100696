"""The example of a package that adds a method is installed, and used through its entry point."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = """
[task]
kind = "partita.testing.small:small_task"
[pretrain]
rounds = 0
[personalize]
method = "momentum"
decay = 0.25
rounds = 1
devices_per_round = 2
[finetune]
epochs = 0
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_example_package_is_installed_and_used_through_its_entry_point(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "installed"
    shutil.copytree(ROOT / "examples/own_package", source)
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *options, str(source)], check=True)
    paths = [str(target), str(ROOT / "src")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(
            command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (tmp_path / "mine.toml").write_text(CONFIG)
    described = json.loads(run("partita", "describe", "mine.toml", "--json"))
    out = run("partita", "run", "mine.toml", "out=run")
    tested = run("pytest", "-q", "-p", "no:cacheprovider", str(source / "tests"))

    assert described["method"]["keeps"] == {"momentum/head.weight": [3, 6], "momentum/head.bias": [3]}
    assert "Momentum" in out
    assert "decay = 0.25" in (tmp_path / "run/config.toml").read_text()
    assert "1 passed" in tested
