"""A deployment in one process: the server's run in a thread, devices that talk to it without sockets."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from partita.config.reading import read_config
from partita.deploy.building import build_for_device, computes_with
from partita.deploy.hub import Hub
from partita.deploy.joining import Joined, Participant
from partita.deploy.link import Link, Rejected
from partita.deploy.messages import message_of
from partita.deploy.outbox import Outbox
from partita.deploy.policy import Policy
from partita.deploy.service import Service
from partita.deploy.serving import Listening, new_server, resumed_server
from partita.executors.https import Patience
from partita.executors.replies import Refused
from partita.runs.folder import RunFolder
from partita.studies import run as runner

CONFIG = """
seed = 3
workers = 1
[task]
kind = "synthetic"
devices = {devices}
examples = 6
[partition]
personal = "output"
[pretrain]
rounds = 2
devices_per_round = 2
[personalize]
rounds = {rounds}
devices_per_round = 2
{more}
[finetune]
epochs = 1
"""


def write_config(folder: Path, *, devices: int = 3, rounds: int = 3, more: str = "") -> Path:
    """Write the config of a small run."""
    path = folder / "config.toml"
    path.write_text(CONFIG.format(devices=devices, rounds=rounds, more=more))
    return path


def simulated(config: Path, out: Path) -> RunFolder:
    """Run a config in simulation."""
    run = runner.prepare(read_config(config, [f"out={out}"]), config.parent)
    runner.finish(run)
    return run.folder


class DirectLink:
    """A link to a hub in the same process; what is sent is the same as over a network."""

    def __init__(self, hub: Hub, device: str) -> None:
        self.hub = hub
        self.device = device
        self.sent: list[bytes] = []

    def poll(self, values: Mapping[str, Any]) -> dict[str, Any]:
        if (reason := self.hub.refusal(self.device, dict(values))) is not None:
            return {"kind": "refused", "reason": reason}
        return json.loads(json.dumps(self.hub.message(self.device)))

    def tensors(self, digest: str, size: int) -> bytes:
        content = self.hub.desk.tensors(digest)
        if content is None:
            raise Rejected("gone")
        assert len(content) == size
        assert hashlib.sha256(content).hexdigest() == digest
        return content

    def reply(self, nonce: str, content: bytes) -> bool:
        self.sent.append(content)
        try:
            return self.hub.desk.hand_in(self.hub.desk.named(self.device, nonce), content)
        except Refused as error:
            raise Rejected(str(error)) from None


class Device:
    """A device with a home of its own; `crash` loses all that is not in it."""

    def __init__(self, config: Path, home: Path, device: str, policy: Policy | None = None) -> None:
        own = read_config(config, [])
        built = build_for_device(own, config.parent, device)
        computes = computes_with(own, built, config.parent)
        home.mkdir(parents=True, exist_ok=True)
        self.joined = Joined(
            device=device, home=home, built=built, seed=own.seed, computes=computes, policy=policy or Policy()
        )
        self.part: Any = None
        self.is_done = False
        self.link: Any = None

    def connect(self, hub: Hub) -> None:
        """Talk to a hub from now on, as after a lost connection."""
        if self.link is None:
            self.link = DirectLink(hub, self.joined.device)
        self.link.hub = hub

    def crash(self) -> None:
        """Lose everything in memory."""
        self.part = None

    def ask(self) -> str:
        """Ask once, do what the server says and return the kind of its message."""
        assert self.link is not None
        values = self.link.poll({"computes": dict(self.joined.computes)})
        if values["kind"] == "refused":
            return "refused"
        message = message_of(values, self.joined.device)
        if self.part is None or self.part.run != message.run:
            link = cast(Link, self.link)
            self.part = Participant(self.joined, message.run, link, Outbox(self.joined.home))
        self.part.take(message)
        self.is_done = message.kind == "done"
        return message.kind

    @property
    def personal(self) -> bytes:
        """The content of the device's personal part."""
        assert self.part is not None
        return self.part.home.store.path_of(self.joined.device).read_bytes()


class _Silent:
    """Stands for the service, where nobody waits."""

    def wake(self, devices: Iterable[str] | None = None) -> None: ...


@dataclass
class Deployment:
    """A server in a thread; `devices` ask it one after the other, in this thread."""

    config: Path
    home: Path
    devices: Sequence[Device]
    first: int
    """The number of devices with which the run begins."""
    patience: Patience = field(default_factory=Patience)
    server: Any = None
    error: BaseException | None = None

    def start(self, *, resume: bool = False, watch: Callable[..., None] | None = None) -> None:
        """Start or resume the run."""
        listening = Listening(
            home=self.home,
            host="127.0.0.1",
            port=0,
            insecure=True,
            devices=self.first,
            linger=60,
            patience=self.patience,
        )
        if resume:
            server = resumed_server(listening, [])
        else:
            server = new_server(listening, read_config(self.config, []), self.config.parent)
        self.server, self.error = server, None
        for device in self.devices:
            device.connect(server.hub)

        def finish() -> None:
            try:
                run = server.resumed() if resume else server.begin("")
                server.finish(run, watch or (lambda *_: None), cast(Service, _Silent()))
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=finish, daemon=True)
        self.thread.start()

    def step(self) -> None:
        """Let every device ask once."""
        kinds = {device.ask() for device in self.devices if not device.is_done}
        if kinds <= {"wait", "refused"}:
            time.sleep(0.001)

    def finish(self) -> None:
        """Let devices ask until the run is over."""
        while self.thread.is_alive():
            self.step()
        self.thread.join()
        if self.error is not None:
            raise self.error

    @property
    def run(self) -> RunFolder:
        """The run's folder."""
        return RunFolder(self.home / "run")


def same_results(run: RunFolder, other: RunFolder) -> bool:
    """Return whether two runs have the same bits in all that a server has."""
    names = ["pretrained", "personalized", "start"]
    files = [*(folder_file(name) for name in names), "devices.parquet", "summary.json"]
    same = all((run.path / name).read_bytes() == (other.path / name).read_bytes() for name in files)
    return same and lines_of(run) == lines_of(other)


def folder_file(name: str) -> str:
    return f"shared/{name}.safetensors"


def lines_of(run: RunFolder) -> list[dict[str, Any]]:
    """Return the lines of `rounds.jsonl` without what depends on time."""
    return [{name: value for name, value in line.items() if name != "seconds"} for line in run.lines()]


def lines_so_far(deployment: Deployment) -> int:
    """Return the number of committed rounds."""
    return sum(1 for _ in deployment.run.lines()) if deployment.run.commit else 0


def personal_of(run: RunFolder, device: str) -> bytes:
    """Return the content of a personal part in a run's folder."""
    from partita.device.store import DiskStore

    return DiskStore(run.personal_folder).path_of(device).read_bytes()
