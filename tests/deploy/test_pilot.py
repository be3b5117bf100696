"""The commands of docs/how-to/deploy.md, executed as they are there: keys, checks, a run with three devices."""

import random
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

import partita
from deployed import personal_of, same_results, simulated
from partita.device.store import DiskStore
from partita.runs.folder import RunFolder
from tables import write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md"
IDS = ["ann", "bob", "cid"]


def blocks(kind: str) -> list[str]:
    """Return the blocks of one kind on the page."""
    parts = PAGE.read_text().split("```")
    return [part.removeprefix(f"{kind}\n") for part in parts[1::2] if part.startswith(f"{kind}\n")]


def commands(beginning: str) -> list[str]:
    """Return the commands on the page that begin with some words."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith(beginning)]


def start(line: str, folder: Path) -> subprocess.Popen[str]:
    words = shlex.split(line)
    if words[0] == "partita":
        words[:1] = [sys.executable, "-m", "partita"]
    return subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )


def run(line: str, folder: Path) -> str:
    process = start(line, folder)
    output, _ = process.communicate()
    assert process.returncode == 0, f"{line}\n{output}"
    return output


def write_files(folder: Path) -> None:
    """Write the tables and configs of the pilot."""
    rng = random.Random(0)
    rows = [
        {"device": device, "a": rng.gauss(0, 1), "b": rng.gauss(0, 1), "label": number % 2}
        for device in IDS
        for number in range(30)
    ]
    write(folder / "all.parquet", rows)
    for device in IDS:
        write(folder / f"{device}.parquet", [row for row in rows if row["device"] == device])
    config = blocks("toml")[0]
    (folder / "config.toml").write_text(config)
    (folder / "simulation.toml").write_text(
        config.replace('derived = "derived.json"', 'data = "all.parquet"')
    )


def test_the_pilot_of_the_page_runs_and_has_the_bits_of_the_simulation(tmp_path: Path) -> None:
    write_files(tmp_path)
    for line in (
        *commands("partita describe"),
        *commands("partita keys ca"),
        *commands("partita keys server"),
    ):
        run(line, tmp_path)
    of_a_device = ["partita keys request", "partita keys sign", "cp ", "partita join --check"]
    for device in IDS:
        for line in [line for beginning in of_a_device for line in commands(beginning)]:
            run(line.replace("ann", device), tmp_path)
    (serve,), (join,) = commands("partita serve"), commands("partita join --server")

    processes = [start(serve, tmp_path)]
    try:
        time.sleep(1)
        processes += [start(join.replace("ann", device), tmp_path) for device in IDS]
        outputs = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()

    assert [process.returncode for process in processes] == [0, 0, 0, 0], "\n".join(outputs)
    simulation = simulated(tmp_path / "simulation.toml", tmp_path / "simulated")
    assert same_results(RunFolder(tmp_path / "server" / "run"), simulation)
    for device in IDS:
        (home,) = (tmp_path / "homes" / device / "runs").iterdir()
        assert DiskStore(home / "personal").path_of(device).read_bytes() == personal_of(simulation, device)
        assert partita.load(tmp_path / f"{device}.safetensors")
    lines = [run(line, tmp_path) for line in commands("partita outbox")]
    assert "personalized 0 update: " in lines[0] or "personalized 1 update: " in lines[0]
    assert "are as they were written" in lines[1]
