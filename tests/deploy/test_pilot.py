"""The commands of docs/how-to/deploy.md, executed as they are there: keys, checks, a run with three devices.

Once on loopback, and once on machines of their own, which are network namespaces; there one device reaches
the server only through a proxy.
"""

import os
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import partita
from deployed import personal_of, same_results, simulated
from namespaces import PROXY, SERVER, network
from partita.device.store import DiskStore
from partita.runs.folder import RunFolder
from tables import write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "how-to" / "deploy.md"
IDS = ["ann", "bob", "cid"]
OF_DEVICES = ("partita keys request", "partita join", "partita outbox", "scp home/")
"""The beginnings of commands that are given on a device; others are given on the server."""


def blocks(kind: str) -> list[str]:
    """Return the blocks of one kind on the page."""
    parts = PAGE.read_text().split("```")
    return [part.removeprefix(f"{kind}\n") for part in parts[1::2] if part.startswith(f"{kind}\n")]


@dataclass
class Machine:
    """A machine with a folder of its own."""

    folder: Path
    prefix: list[str] = field(default_factory=list)
    """Words before every command."""
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, line: str) -> subprocess.Popen[str]:
        words = shlex.split(line)
        if words[0] == "partita":
            words[:1] = [sys.executable, "-m", "partita"]
        return subprocess.Popen(
            [*self.prefix, *words],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )


class Pilot:
    """The machines of the page, by name: `fl` is the server.

    Args:
        folder: the folder that has theirs in it.
        address: the server's address.
        prefixes: the words that start a command on a machine.
    """

    def __init__(self, folder: Path, address: str, prefixes: dict[str, list[str]]) -> None:
        self._address = address
        self.machines = {name: Machine(folder / name, prefixes.get(name, [])) for name in ("fl", *IDS)}
        for machine in self.machines.values():
            machine.folder.mkdir()
        self._write_files(folder)

    def _write_files(self, folder: Path) -> None:
        rng = random.Random(0)
        rows = [
            {"device": device, "a": rng.gauss(0, 1), "b": rng.gauss(0, 1), "label": number % 2}
            for device in IDS
            for number in range(30)
        ]
        own = self.machines["fl"].folder
        write(own / "all.parquet", rows)
        for device in IDS:
            table = self.machines[device].folder / f"{device}.parquet"
            write(table, [row for row in rows if row["device"] == device])
        config = blocks("toml")[0]
        (own / "config.toml").write_text(config)
        (own / "simulation.toml").write_text(
            config.replace('derived = "derived.json"', 'data = "all.parquet"')
        )

    def commands(self) -> Iterator[tuple[Machine, str]]:
        """Yield the commands on the page, with the machine on which each is given."""
        for line in [line for block in blocks("sh") for line in block.splitlines()]:
            for device in IDS if "ann" in line or line.startswith(OF_DEVICES) else IDS[:1]:
                own = line.replace("ann", device)
                yield self.machines[device if line.startswith(OF_DEVICES) else "fl"], own

    def start(self, machine: Machine, line: str) -> subprocess.Popen[str]:
        return machine.start(line.replace("fl.example.org", self._address))

    def run(self, machine: Machine, line: str) -> str:
        """Carry out a command to its end, and return what it has printed."""
        if line.startswith("scp "):
            self._copy(machine, shlex.split(line)[1:])
            return ""
        process = self.start(machine, line)
        output, _ = process.communicate()
        assert process.returncode == 0, f"{line}\n{output}"
        return output

    def _copy(self, machine: Machine, words: list[str]) -> None:
        *files, target = words
        host, _, path = target.partition(":pilot/")
        for name in files:
            shutil.copy(machine.folder / name, self.machines[host.partition(".")[0]].folder / path)

    def carry_out(self) -> dict[str, list[str]]:
        """Carry out the page from top to bottom, and return what has been printed, by command."""
        printed: dict[str, list[str]] = {}
        together: list[tuple[Machine, str]] = []
        for machine, line in self.commands():
            if line.startswith(("partita serve", "partita join --server")):
                together.append((machine, line))
                continue
            if together:
                self._run_together(together)
                together = []
            printed.setdefault(line.partition(" --")[0], []).append(self.run(machine, line))
        return printed

    def _run_together(self, commands: list[tuple[Machine, str]]) -> None:
        """Run the server and the devices at the same time; devices come first, and try again."""
        with ExitStack() as stack:
            processes = [self.start(*command) for command in reversed(commands)]
            for process in processes:
                stack.callback(process.wait)
                stack.callback(process.kill)
            outputs = [process.communicate()[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0, 0], "\n".join(outputs)

    def check(self, printed: dict[str, list[str]]) -> None:
        """Check the results against the simulation."""
        own = self.machines["fl"].folder
        simulation = simulated(own / "simulation.toml", own / "simulated")
        assert same_results(RunFolder(own / "server" / "run"), simulation)
        for device in IDS:
            folder = self.machines[device].folder
            (home,) = (folder / "home" / "runs").iterdir()
            personal = DiskStore(home / "personal").path_of(device).read_bytes()
            assert personal == personal_of(simulation, device)
            assert partita.load(folder / f"{device}.safetensors")
        records = printed["partita outbox"]
        assert any("personalized 0 update: " in record for record in records)
        assert sum("are as they were written" in record for record in records) == len(IDS)


def test_the_pilot_of_the_page_runs_and_has_the_bits_of_the_simulation(tmp_path: Path) -> None:
    pilot = Pilot(tmp_path, "localhost", {})

    pilot.check(pilot.carry_out())


def test_the_pilot_runs_on_machines_of_their_own_one_of_them_behind_a_proxy(tmp_path: Path) -> None:
    with network(IDS) as prefixes, ExitStack() as stack:
        pilot = Pilot(tmp_path, SERVER, prefixes)
        record, last = tmp_path / "passed.bin", pilot.machines[IDS[-1]]
        last.environment["HTTPS_PROXY"] = f"http://{PROXY}:3128"
        script = [sys.executable, str(TESTS / "connect_proxy.py"), PROXY, "3128", str(record)]
        proxy = subprocess.Popen([*prefixes["proxy"], *script])
        stack.callback(proxy.wait)
        stack.callback(proxy.kill)
        reach = f"import socket; socket.create_connection(({SERVER!r}, 8443), 5)"
        without_proxy = subprocess.run(
            [*last.prefix, sys.executable, "-c", reach], check=False, capture_output=True
        )
        printed = pilot.carry_out()

    assert b"Network is unreachable" in without_proxy.stderr
    passed = record.read_bytes()
    assert f"CONNECT {SERVER}:8443".encode() in passed
    assert len(passed) > 10_000
    assert b"Partita-Device" not in passed
    pilot.check(printed)
