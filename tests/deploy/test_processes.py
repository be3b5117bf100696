"""Real processes on loopback with mutual TLS: the bits of the simulation, whoever is killed and when."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployed import PILOT as IDS
from deployed import personal_of, same_results, simulated, write_tables
from partita.deploy import keys
from partita.deploy.outbox import verify
from partita.device.store import DiskStore
from partita.runs.folder import RunFolder
from ranks import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

CONFIG = """
seed = 3
workers = 1
[task]
kind = "tabular"
data = "all.parquet"
{derived}
[partition]
personal = "output"
[pretrain]
rounds = 3
devices_per_round = 2
[personalize]
rounds = {rounds}
devices_per_round = 2
[finetune]
epochs = 2
"""


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "partita", *map(str, arguments)]


class Pilot:
    """A server and three devices, each with a folder, a table and keys of its own."""

    def __init__(self, folder: Path, *, rounds: int) -> None:
        self.folder = folder
        self.port = free_port()
        write_tables(folder)
        whole = folder / "simulated.toml"
        whole.write_text(CONFIG.format(derived="", rounds=rounds))
        self.simulation = simulated(whole, folder / "simulated")
        (folder / "derived.json").write_bytes(self.simulation.derived_file.read_bytes())
        self.config = folder / "config.toml"
        self.config.write_text(CONFIG.format(derived='derived = "derived.json"', rounds=rounds))
        keys.make_ca(folder / "ca", "pilot")
        keys.make_server(folder / "ca", folder / "server", ["localhost"], days=2)
        for device in IDS:
            request = keys.make_request(folder / device, device)
            signed = keys.sign_request(folder / "ca", request, device, days=2)
            (folder / device / keys.DEVICE_CERTIFICATE).write_bytes(signed)
            authority = (folder / "ca" / keys.CA_CERTIFICATE).read_bytes()
            (folder / device / keys.CA_CERTIFICATE).write_bytes(authority)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def serve(self, *more: str, resume: bool = False) -> None:
        own = ["--resume"] if resume else [self.config, "--devices", "3"]
        listen = f"127.0.0.1:{self.port}"
        self._start("server", "serve", *own, "--home", self.folder / "server", "--listen", listen, *more)

    def join(self, device: str, *more: str) -> None:
        self._start(
            device,
            "join",
            *("--server", f"https://localhost:{self.port}"),
            *("--config", self.config, "--device", device),
            *("--data", self.folder / f"{device}.parquet", "--home", self.folder / device),
            *more,
        )

    def _start(self, name: str, *arguments: str | Path) -> None:
        with (self.folder / f"{name}.log").open("ab") as log, (self.folder / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(command(*arguments), stdout=out, stderr=log)

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def wait(self) -> None:
        for name, process in self.processes.items():
            assert process.wait() == 0, (self.folder / f"{name}.log").read_text()

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder / "server" / "run")

    def personal(self, device: str) -> bytes:
        (folder,) = (self.folder / device / "runs").iterdir()
        return DiskStore(folder / "personal").path_of(device).read_bytes()

    def check_same_bits(self) -> None:
        assert same_results(self.run, self.simulation)
        for device in IDS:
            assert self.personal(device) == personal_of(self.simulation, device)
            verify(self.folder / device)


@pytest.fixture
def pilot(tmp_path: Path) -> Iterator[Pilot]:
    made = Pilot(tmp_path, rounds=6)
    try:
        yield made
    finally:
        for process in made.processes.values():
            process.kill()
            process.wait()


def test_three_devices_with_mutual_tls_have_the_bits_of_the_simulation(pilot: Pilot) -> None:
    for device in IDS:  # They come first, and try until there is a server.
        pilot.join(device, *(["--json"] if device == "bob" else []))
    time.sleep(1)
    pilot.serve("--json")
    pilot.wait()

    pilot.check_same_bits()
    assert not pilot.run.personal_folder.exists()
    assert "finetuned, test: " in (pilot.folder / "ann.out").read_text()
    *rounds, summary = printed_json(pilot.folder / "server.out")
    assert [line["done"] for line in rounds] == list(range(1, rounds[-1]["total"] + 1))
    assert summary["summary"]["metric"] == "accuracy"
    *visits, last = printed_json(pilot.folder / "bob.out")
    assert {visit["stage"] for visit in visits} == {"pretrained", "personalized", "finetuned"}
    assert last["device"] == "bob"
    assert "finetuned" in last["results"]


def printed_json(path: Path) -> list[dict[str, Any]]:
    """Return what a command has printed: each line is JSON."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_twenty_kills_of_devices_and_of_the_server_change_no_bit(tmp_path: Path) -> None:
    pilot = Pilot(tmp_path, rounds=90)  # Some pass between two kills on a busy machine.
    rng = random.Random(int(os.environ.get("PARTITA_TEST_SEED", "7")))
    try:
        pilot.serve()
        for device in IDS:
            pilot.join(device)
        for _ in range(20):
            wait_for_progress(pilot)
            time.sleep(rng.uniform(0, 0.1))  # In the middle of a visit, a transfer or a commit.
            name = rng.choice([*IDS, "server"])
            assert pilot.processes[name].poll() is None, (pilot.folder / f"{name}.log").read_text()
            pilot.kill(name)
            if name == "server":
                pilot.serve(resume=True)
            else:
                pilot.join(name)
        pilot.wait()
        pilot.check_same_bits()
    finally:
        for process in pilot.processes.values():
            process.kill()
            process.wait()


def wait_for_progress(pilot: Pilot) -> None:
    """Wait until another round is committed."""
    before = pilot.run.commit
    while pilot.run.commit == before:
        assert pilot.processes["server"].poll() is None, (pilot.folder / "server.log").read_text()
        time.sleep(0.02)
