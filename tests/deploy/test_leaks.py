"""Nothing personal leaves a device: a scan of all traffic and of the server's files, and leaks that it finds."""

import socket
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deployed import Device, write_config
from partita.config.reading import read_config
from partita.deploy.joining import Participant, join
from partita.deploy.link import Link
from partita.deploy.listening import Listening, serving
from partita.deploy.serving import Serving, new_server
from partita.device.store import DiskStore
from partita.params import Params
from partita.protocol import Reply

RUN = 32
"""Bytes of a personal tensor that must appear nowhere."""
IDS = ["device-0000", "device-0001", "device-0002"]


class Proxy:
    """A TCP proxy that records every byte, by direction."""

    def __init__(self, port: int) -> None:
        self.up, self.down = bytearray(), bytearray()
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            for one, other, record in ((client, server, self.up), (server, client, self.down)):
                threading.Thread(target=self._copy, args=(one, other, record), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket, record: bytearray) -> None:
        with one:
            try:
                while content := one.recv(65536):
                    record += content
                    other.sendall(content)
                other.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.close()


class Scanned:
    """A deployment over plain HTTP through a recording proxy, and all personal parts that were ever saved."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.config = write_config(folder)
        # Without pretraining, which shares everything: then every personal name in a reply is a leak.
        text = self.config.read_text().replace("[pretrain]\nrounds = 2", "[pretrain]\nrounds = 0")
        self.config.write_text(text.replace("examples = 6", "examples = 6\npersonal = 16"))
        self.saved: list[tuple[str, bytes]] = []
        self.names: set[str] = set()
        save, visiting, carry_out = DiskStore.save, threading.Lock(), Participant._carry_out

        def recorded(store: DiskStore, device: str, label: str, personal: Params) -> None:
            for name, tensor in personal.items():
                self.names.add(name)
                self.saved.append((name, tensor.detach().contiguous().numpy().tobytes()))
            save(store, device, label, personal)

        def one_at_a_time(*arguments: Any) -> object:
            with visiting:  # Random numbers belong to the process.
                return carry_out(*arguments)

        monkeypatch.setattr(DiskStore, "save", recorded)
        monkeypatch.setattr(Participant, "_carry_out", one_at_a_time)

    def run(self) -> None:
        settings = Serving(home=self.folder / "server", devices=3)
        server = new_server(settings, read_config(self.config, []), self.config.parent)
        devices = [Device(self.config, self.folder / "devices" / name, name).joined for name in IDS]
        with serving(server, Listening(host="127.0.0.1", port=0, insecure=True)) as service:
            self.proxy = Proxy(service.port)
            threads = [threading.Thread(target=self._join, args=(own,), daemon=True) for own in devices]
            for thread in threads:
                thread.start()
            server.finish(server.begin(""), lambda *_: None)
            for thread in threads:
                thread.join()
            self.proxy.close()

    def _join(self, joined: Any) -> None:
        with Link(f"http://127.0.0.1:{self.proxy.port}", joined.device, None) as link:
            join(joined, link)

    def leaks(self) -> set[str]:
        """Return where a run of bytes of a personal part, or a personal name, was found."""
        found: set[str] = set()
        places = {"traffic up": bytes(self.proxy.up), "traffic down": bytes(self.proxy.down)}
        places |= {f"file {path.name}": path.read_bytes() for path in self.server_files()}
        for place, content in places.items():
            if any(window in content for window in self._windows()):
                found.add(place)
        if any(f'"{name}"'.encode() in places["traffic up"] for name in self.names):
            found.add("name in traffic up")
        return found

    def server_files(self) -> list[Path]:
        return [path for path in (self.folder / "server").rglob("*") if path.is_file()]

    def _windows(self) -> Iterator[bytes]:
        for _, content in self.saved:
            yield from (content[at : at + RUN] for at in range(0, len(content) - RUN + 1, 4))


@pytest.fixture
def scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scanned:
    return Scanned(tmp_path, monkeypatch)


def test_no_run_of_a_personal_part_and_no_personal_name_leaves_a_device(scanned: Scanned) -> None:
    scanned.run()

    assert len(scanned.saved) == 3 * 2 + 3  # Three rounds of two devices, then all are fine-tuned.
    assert len(scanned.proxy.up) > 5000
    assert scanned.leaks() == set()


def leaking(monkeypatch: pytest.MonkeyPatch, scanned: Scanned, *, name: str) -> None:
    """Let one device's replies have its personal part, under its own name or tied to a shared one."""
    carry_out = Participant._carry_out

    def tied(part: Participant, order: Any, cohort: int) -> object:
        answer = carry_out(part, order, cohort)
        if order.device != IDS[0] or not isinstance(answer, Reply) or not answer.change or not scanned.saved:
            return answer
        personal = torch.frombuffer(bytearray(scanned.saved[-1][1]), dtype=torch.float32)
        leaked = torch.zeros_like(answer.change["u"]) if name == "u" else torch.zeros(1)
        leaked[: len(personal)] = personal[: len(leaked)]
        return replace(answer, change={**answer.change, name: leaked})

    monkeypatch.setattr(Participant, "_carry_out", tied)


def test_the_scan_finds_a_personal_tensor_that_leaves_under_the_name_it_is_tied_to(
    scanned: Scanned, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned.config.write_text(
        scanned.config.read_text().replace("personal = 16", "personal = 16\nshared = 20")
    )
    leaking(monkeypatch, scanned, name="u")
    scanned.run()

    assert scanned.leaks() == {"traffic up"}


def test_the_scan_finds_a_personal_name(scanned: Scanned, monkeypatch: pytest.MonkeyPatch) -> None:
    leaking(monkeypatch, scanned, name="v")
    scanned.run()

    assert scanned.leaks() == {"name in traffic up"}


@pytest.mark.parametrize("kind", ["file", "database"])
def test_the_scan_finds_a_personal_part_on_the_server(scanned: Scanned, kind: str) -> None:
    scanned.run()
    content = scanned.saved[-1][1]

    if kind == "file":
        (scanned.folder / "server" / "note.bin").write_bytes(b"header" + content)
    else:
        with sqlite3.connect(scanned.folder / "server" / "state.db") as database:
            database.execute("create table replies (content blob)")
            database.execute("insert into replies values (?)", [content])
        database.close()

    assert scanned.leaks() == {f"file {'note.bin' if kind == 'file' else 'state.db'}"}
