"""A real SuperLink with three SuperNodes on loopback, and Flower's simulation: the commands of docs/how-to/flower.md.

They need an environment with Flower: `make flower` makes it in .flower, or $PARTITA_FLOWER names another.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import partita
from deployed import PILOT, personal_of, same_results, simulated, write_tables
from documents import blocks_of
from partita.deploy.outbox import verify
from partita.device.store import DiskStore
from partita.params import Params
from partita.protocol import key_of
from partita.runs.folder import RunFolder
from partita.runs.tensors import shared_tensors
from ranks import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "flower.md"
BIN = Path(os.environ.get("PARTITA_FLOWER", ROOT / ".flower")) / "bin"
needs_flower = pytest.mark.skipif(
    not (BIN / "flwr").exists(), reason="There is no environment with Flower: `make flower` makes it."
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    command = [sys.executable, "-m", "pip", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_extra_resolves_with_its_constraints_and_every_version_is_pinned() -> None:
    if pip("index", "versions", "flwr").returncode:
        pytest.skip("No package index can be reached.")
    constraints = ROOT / "constraints-flower.txt"

    done = pip(
        *("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"),
        *("--constraint", str(constraints), f"{ROOT}[flower]"),
    )

    assert done.returncode == 0, done.stderr
    lines = constraints.read_text().splitlines()
    pinned = dict(line.lower().replace("_", "-").split("==") for line in lines if "==" in line)
    for package in json.loads(done.stdout)["install"]:
        name, version = (package["metadata"][key] for key in ("name", "version"))
        if name != "partita":  # A build for one kind of processor, such as 2.13.0+cpu, is the same version.
            assert pinned[name.lower().replace("_", "-").replace(".", "-")] == version.partition("+")[0], name


@needs_flower
def test_the_components_pass_their_tests_where_flower_is_installed() -> None:
    command = [BIN / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/deploy/test_flower.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


class Machines:
    """The machines of the page, all in one folder: its commands run there, each with a port of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blocks = [block for block in blocks_of(PAGE) if "executed by" in block.marks]
        self.ports = {str(port): str(free_port()) for port in (8100, 8200, 8201, 8202, 8203)}
        self._processes: list[subprocess.Popen[bytes]] = []
        (config,) = self._blocks("toml")
        (folder / "config.toml").write_text(config)
        (folder / "whole.toml").write_text(config.replace('derived = "derived.json"', 'data = "all.parquet"'))
        write_tables(folder)
        (folder / "flwr").mkdir()
        (federations,) = self._blocks("text")
        (folder / "flwr" / "config.toml").write_text(self._here(federations))
        self._environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # On loopback alone.
            "RAY_worker_niceness": "0",  # Its default lets everything else on the machine come first.
        }

    def _blocks(self, kind: str) -> list[str]:
        return [block.text for block in self.blocks if block.language == kind]

    def _here(self, text: str) -> str:
        for port, own in self.ports.items():
            text = text.replace(port, own)
        return text

    def command(self, *words: str) -> str:
        """Return the only command of the page that has some words."""
        lines = [line for block in self._blocks("sh") for line in block.splitlines()]
        (line,) = [line for line in lines if all(word in line for word in words)]
        return self._here(line)

    def start(self, line: str, log: str) -> subprocess.Popen[bytes]:
        """Start a command, whose output goes to a file."""
        with (self.folder / f"{log}.log").open("ab") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=self.folder,
                env=self._environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def run(self, line: str, log: str) -> str:
        """Run a command to its end and return its output."""
        code = self.start(line, log).wait()
        output = (self.folder / f"{log}.log").read_text()
        assert code == 0, f"{line}\n{output}"
        return output

    def wait_for_superlink(self, port: str) -> None:
        """Wait until the SuperLink at a port of the page answers."""
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[port]}/health") as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)

    def stop(self) -> None:
        """End all processes, and those that they have started."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def saved(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Run the config in our own simulation; return every personal tensor that was ever saved in it."""
    tensors: list[np.ndarray] = []
    save = DiskStore.save

    def recorded(store: DiskStore, device: str, label: str, personal: Params) -> None:
        tensors.extend(tensor.detach().contiguous().numpy().copy() for tensor in personal.values())
        save(store, device, label, personal)

    with monkeypatch.context() as patch:
        patch.setattr(DiskStore, "save", recorded)
        simulated(machines.folder / "whole.toml", machines.folder / "expected")
    machines.run(machines.command("partita describe"), "describe")
    machines.run(machines.command("partita flower new"), "new")
    return tensors


def check_same(run: Path, homes: dict[str, Path], expected: RunFolder) -> None:
    """Check that a run and the personal parts in homes have the bits of our own simulation."""
    assert same_results(RunFolder(run), expected)
    assert not RunFolder(run).personal_folder.exists()
    for device, home in homes.items():
        (folder,) = (home / "runs").iterdir()
        assert DiskStore(folder / "personal").path_of(device).read_bytes() == personal_of(expected, device)
        verify(home)


@needs_flower
@pytest.mark.usefixtures("saved")
def test_flowers_simulation_has_the_bits_of_our_own(machines: Machines) -> None:
    machines.start(machines.command("flower-superlink", "--simulation"), "superlink")
    machines.wait_for_superlink("8100")

    machines.run(machines.command("flwr run", " simulation "), "run")

    folder = machines.folder
    homes = {device: folder / "simulated" / "devices" / key_of(device) for device in PILOT}
    check_same(folder / "simulated" / "run", homes, RunFolder(folder / "expected"))


BLOCK, RUN = 4096, 32
"""Bytes in which content is collected, and of a personal tensor that must appear nowhere."""


class Recorder:
    """Collects the content that the files of Flower's processes have at any time, all but the devices' homes.

    Databases are written many times: of blocks with the same content, one is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._blocks: dict[bytes, bytes] = {}
        self._seen: dict[Path, tuple[int, int]] = {}
        self._folder = folder
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Recorder":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self.look()

    def _run(self) -> None:
        while not self._end.wait(0.3):
            self.look()

    def look(self) -> None:
        patterns = ("flwr/**/*", "app-home/**/*", "*.db*", "*.log")
        for path in [path for pattern in patterns for path in self._folder.glob(pattern) if path.is_file()]:
            try:
                state = path.stat()
                if self._seen.get(path) == (state.st_mtime_ns, state.st_size):
                    continue
                self._seen[path] = state.st_mtime_ns, state.st_size
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            for at in range(0, len(content), BLOCK):
                block = content[at : at + BLOCK + RUN - 1]
                self._blocks[hashlib.sha256(block).digest()] = block

    def has_any(self, tensors: list[np.ndarray]) -> bool:
        """Return whether 32 bytes in a row of one of some tensors are anywhere in what was collected."""
        windows = {
            content[at : at + RUN]
            for content in (tensor.tobytes() for tensor in tensors)
            for at in range(0, len(content) - RUN + 1, 4)
        }
        assert len(windows) > 20
        starts = np.array([int.from_bytes(window[:8], "little") for window in windows], dtype="<u8")
        return any(self._has(block, windows, starts) for block in self._blocks.values())

    def _has(self, content: bytes, windows: set[bytes], starts: np.ndarray) -> bool:
        for offset in range(8 if len(content) >= RUN else 0):
            words = np.frombuffer(content, "<u8", count=(len(content) - offset) // 8, offset=offset)
            places = offset + 8 * np.flatnonzero(np.isin(words, starts))
            if any(content[at : at + RUN] in windows for at in places):
                return True
        return False


@needs_flower
def test_a_superlink_and_three_supernodes_have_the_bits_of_our_simulation_and_nothing_personal_leaves(
    machines: Machines, saved: list[np.ndarray]
) -> None:
    folder, expected = machines.folder, RunFolder(machines.folder / "expected")
    with Recorder(folder) as recorder:
        machines.start(machines.command("flower-superlink", "state.db"), "superlink")
        machines.wait_for_superlink("8200")
        node = machines.command("flower-supernode")
        for device, port in zip(PILOT, ("8201", "8202", "8203"), strict=True):
            own = node.replace("ann", device).replace(machines.ports["8201"], machines.ports[port])
            machines.start(own, f"node-{device}")
        output = machines.run(machines.command("flwr run", " pilot "), "run")
        machines.stop()

    check_same(folder / "app-home" / "run", {device: folder / "homes" / device for device in PILOT}, expected)
    assert "asked again" not in output
    for device in PILOT:
        assert partita.load(folder / f"{device}.safetensors")
    lines = machines.run(machines.command("partita outbox", "--verify"), "outbox")
    assert "are as they were written" in lines
    shared = [tensor.numpy() for tensor in shared_tensors(expected, "personalized").values()]
    assert recorder.has_any(shared)  # What does travel is found.
    assert not recorder.has_any(saved)
