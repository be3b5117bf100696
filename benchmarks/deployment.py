"""The cost of real devices: the time of an exchange with mutual TLS, and rounds with 2,000 joined devices.

    python benchmarks/deployment.py

Everything is on loopback. An exchange is an order with its shared part to a device and a reply of the same
size back. The 2,000 devices are in four processes, speak plain HTTP, and reply without training.
"""

import asyncio
import json
import multiprocessing
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import torch

from partita.deploy import keys, tls
from partita.deploy.hub import Hub
from partita.deploy.link import Link
from partita.deploy.service import DEVICE_HEADER, Service
from partita.executors.desk import Desk
from partita.executors.https import HttpsExecutor, Patience
from partita.executors.replies import encoded_reply
from partita.params import from_bytes
from partita.protocol import Order, Pace, Reply, Stage, Start, Update
from row import Row

COMPUTES = {"task": "0" * 64}
TRAIN = {"train": {"examples": 1, "loss": 0.5, "start_loss": 0.5}}
DEVICES, PROCESSES, ROUNDS = 2000, 4, 6


def rows() -> Iterator[Row]:
    """Measure exchanges of two sizes, and rounds with many devices."""
    for values, target in ((2, 0.02), (1_600_000, 0.5)):
        seconds = _exchange(values)
        size = "10 bytes" if values == 2 else "6.4 MB"
        yield Row(workload=f"an exchange of {size} with TLS", goal="under", target=target, ours=seconds)
    seconds, grown = _rounds()
    yield Row(workload=f"a round with {DEVICES:,} devices", goal="under", target=30, ours=seconds)
    memory = f"memory that a further round with {DEVICES:,} devices adds to the server"
    yield Row(workload=memory, goal="under", target=1, unit="MB", ours=grown)


def _order(device: str, shared: dict[str, torch.Tensor], round: int = 0) -> Order:
    pace = Pace(lr=0.1, epochs=1)
    work = Update(personal=pace, shared=pace)
    start = Start(digest="0" * 64, personal=None, frozen="0" * 64)
    return Order(stage=Stage.PERSONALIZED, round=round, device=device, work=work, shared=shared, start=start)


def _exchange(values: int) -> float:
    """Return the median time of 20 exchanges with one device, which is connected already."""
    shared = {"u": torch.zeros(values)}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        keys.make_ca(home / "ca", "benchmark")
        keys.make_server(home / "ca", home / "server", ["localhost"], days=1)
        request = keys.make_request(home / "ann", "ann")
        signed = keys.sign_request(home / "ca", request, "ann", days=1)
        (home / "ann" / keys.DEVICE_CERTIFICATE).write_bytes(signed)
        (home / "ann" / keys.CA_CERTIFICATE).write_bytes((home / "ca" / keys.CA_CERTIFICATE).read_bytes())
        hub = Hub("f" * 32, COMPUTES, Desk())
        server = home / "server"
        context, revoked = tls.server_context(server), tls.Revocations(server)
        with Service(hub, "127.0.0.1", 0, context, revoked) as service:
            url = f"https://localhost:{service.port}"
            thread = threading.Thread(target=_reply_for_ever, args=(url, home / "ann"), daemon=True)
            thread.start()
            executor = HttpsExecutor(hub.desk, ["ann"], [], Patience())
            times = []
            for _ in range(21):
                begin = time.perf_counter()
                list(executor.ask([_order("ann", shared)]))
                times.append(time.perf_counter() - begin)
            hub.finish(["ann"])
            service.wake()
            thread.join()
    return statistics.median(times[1:])


def _reply_for_ever(url: str, home: Path) -> None:
    """Reply to orders with the shared part itself, until the run is over."""
    with Link(url, "ann", tls.device_context(home)) as link:
        while (message := link.poll({"computes": COMPUTES}))["kind"] != "done":
            if message["kind"] == "order":
                group = message["tensors"]["shared"]
                change = from_bytes(link.tensors(group["digest"], group["bytes"]))
                answer = Reply(device="ann", weight=1, change=change, metrics=TRAIN)
                link.reply(message["nonce"], encoded_reply(message["nonce"], answer))


def _rounds() -> tuple[float, float]:
    """Return the median time of a round with all devices, and by how many MB later rounds have grown."""
    names = [f"device-{number:04}" for number in range(DEVICES)]
    hub = Hub("f" * 32, COMPUTES, Desk())
    context = multiprocessing.get_context("spawn")
    with Service(hub, "127.0.0.1", 0, None, None) as service:
        parts = [names[part::PROCESSES] for part in range(PROCESSES)]
        url = f"http://127.0.0.1:{service.port}"
        processes = [context.Process(target=_many, args=(url, part)) for part in parts]
        for process in processes:
            process.start()
        hub.wait_for(DEVICES)
        executor, times, peaks = HttpsExecutor(hub.desk, names, [], Patience()), [], []
        for round in range(ROUNDS):
            shared = {"u": torch.zeros(100)}
            begin = time.perf_counter()
            answers = list(executor.ask([_order(name, shared, round) for name in names]))
            times.append(time.perf_counter() - begin)
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)
            assert len({answer.device for answer in answers if isinstance(answer, Reply)}) == DEVICES
        hub.finish(names)
        service.wake()
        for process in processes:
            process.join()
    return statistics.median(times[1:]), (peaks[-1] - peaks[1]) / (ROUNDS - 2)


def _many(url: str, names: list[str]) -> None:
    asyncio.run(_join_all(url, names))


async def _join_all(url: str, names: list[str]) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(_one(session, url, name) for name in names))


async def _one(session: aiohttp.ClientSession, url: str, name: str) -> None:
    """Reply to orders as one device, until the run is over."""
    headers = {DEVICE_HEADER: name}
    while True:
        async with session.post(f"{url}/v1/poll", json={"computes": COMPUTES}, headers=headers) as response:
            message = json.loads(await response.read())
        if message["kind"] == "done":
            return
        if message["kind"] == "order":
            digest = message["tensors"]["shared"]["digest"]
            async with session.get(f"{url}/v1/tensors/{digest}", headers=headers) as response:
                change = from_bytes(await response.read())
            answer = Reply(device=name, weight=1, change=change, metrics=TRAIN)
            body = encoded_reply(message["nonce"], answer)
            nonce = message["nonce"]
            async with session.post(f"{url}/v1/replies/{nonce}", data=body, headers=headers) as response:
                await response.read()


if __name__ == "__main__":
    for row in rows():
        print(row)
