"""The watchers for MLflow and Weights & Biases in docs/how-to/watch-a-run.md, with the real clients, offline."""

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.test_watching import CONFIG, ROUNDS, rounds_in
from documents import ROOT, blocks_of

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs/how-to/watch-a-run.md"
RUN = """
import sys
from partita.cli import main
from partita.training.pipeline import Pipeline

moment, real = int(sys.argv[1]), Pipeline.run

def stopping(pipeline, watch):
    def watch_until(line, done, total):
        if done == moment:
            raise KeyboardInterrupt
        watch(line, done, total)
    return real(pipeline, watch_until)

Pipeline.run = stopping
sys.exit(main(sys.argv[2:]))
"""
"""Runs `partita`, stopped after a number of rounds as a kill would: watchers miss the last one."""
READ = """
import glob, json
from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.internal.datastore import DataStore

for file in sorted(glob.glob("wandb/offline-run-*/run-*.wandb")):
    store, name = DataStore(), file.rpartition("run-")[2].removesuffix(".wandb")
    store.open_for_scan(file)
    while (data := store.scan_data()) is not None:
        record = Record.FromString(data)
        if record.HasField("history"):
            items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
            print(json.dumps([name, {key: json.loads(text) for key, text in items.items()}]))
"""
"""Prints the id and the numbers of every step that Weights & Biases has written offline."""


@pytest.fixture
def network() -> Iterator[socket.socket]:
    """A proxy that nobody should call."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.fixture
def environment(tmp_path: Path, network: socket.socket, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a reader who has saved the watchers and works offline."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(CONFIG)
    for block in blocks_of(DOCS):
        if block.title:
            (tmp_path / block.title).write_text(block.text)
    proxy = f"http://127.0.0.1:{network.getsockname()[1]}"
    own = {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "NO_PROXY": "", "HOME": str(tmp_path)}
    own |= {"MLFLOW_TRACKING_URI": "sqlite:///mlflow.db", "MLFLOW_DISABLE_TELEMETRY": "true"}
    own |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    sources = [ROOT / "src", ROOT / "tests"]
    own["PYTHONPATH"] = os.pathsep.join(map(str, sources))
    # Clients that notice a test would spare themselves what they do for users.
    hidden = ("PYTEST_CURRENT_TEST", "CI", "http_proxy", "https_proxy", "no_proxy")
    return {name: text for name, text in os.environ.items() if name not in hidden} | own


def run(script: str, *arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def interrupted_and_resumed(watcher: str, environment: dict[str, str]) -> None:
    """Run with a watcher, stop after four rounds, and resume."""
    watchers = f"report.watchers=['{watcher}:make']"
    first = run(RUN, "4", "run", "mine.toml", "out=a", watchers, "--quiet", environment=environment)
    assert "Resume with `partita run --resume a`" in first.stderr
    second = run(RUN, "0", "run", "--resume", "a", "--quiet", environment=environment)
    assert (second.returncode, "failed" in second.stderr) == (0, False), second.stderr


def is_untouched(network: socket.socket) -> bool:
    try:
        network.accept()
    except BlockingIOError:
        return True
    return False


def expected() -> dict[str, Any]:
    """The numbers of the last evaluation."""
    last = rounds_in("a")[-1]
    return {f"finetuned/evaluate/{key}": last[key] for key in ("loss", "metric")}


def left_running(folder: Path) -> list[str]:
    """The processes of Weights & Biases that work in a folder."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has ended.
            command = (process / "cmdline").read_text()
            found += [command] if "wandb" in command and (process / "cwd").resolve() == folder else []
    return found


def test_mlflow_has_every_round_of_a_resumed_run_in_one_run(
    tmp_path: Path, environment: dict[str, str], network: socket.socket
) -> None:
    interrupted_and_resumed("mlflow_watcher", environment)

    with sqlite3.connect("mlflow.db") as database:
        (runs,) = database.execute("select count(*) from runs").fetchone()
        metrics = database.execute("select key, value, step from metrics order by step").fetchall()
    database.close()
    assert runs == 1
    assert sorted({step for _, _, step in metrics}) == [1, 2, 3, 5, 6, 7, 8]
    assert {key: value for key, value, step in metrics if step == ROUNDS}.items() >= expected().items()
    assert is_untouched(network)


def test_weights_and_biases_has_every_round_of_a_resumed_run_under_one_id(
    tmp_path: Path, environment: dict[str, str], network: socket.socket
) -> None:
    interrupted_and_resumed("wandb_watcher", environment)

    printed = run(READ, environment=environment)
    assert printed.returncode == 0, printed.stderr
    names, steps = zip(*map(json.loads, printed.stdout.splitlines()), strict=True)
    assert len(set(names)) == 1
    assert len(steps) == ROUNDS - 1
    assert steps[-1].items() >= expected().items()
    assert is_untouched(network)
    assert left_running(tmp_path) == []
