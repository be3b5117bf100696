"""The server's state for its operator: a live page in the look of reports, and metrics for Prometheus."""

import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib import resources
from typing import Any

from aiohttp import web
from jinja2 import Environment
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from partita.deploy.hub import Hub
from partita.protocol import DeviceId
from partita.training.journal import RoundRow
from partita.training.pipeline import RoundCallback

_LINES = 20
"""Rounds on the page."""
_DEVICES = 500
"""Devices on the page."""
FAREWELL = 1.0
"""Seconds that requests have to end when the server stops."""
_OWN_NAMES = ("127.0.0.1", "localhost")
"""The names of this machine under which the status is shown."""


class StatusBoard:
    """The state of a run, filled in after every round.

    Args:
        name: the name of the run.
        hub: who has joined.
    """

    def __init__(self, name: str, hub: Hub) -> None:
        self._name = name
        self._hub = hub
        self._lock = threading.Lock()
        self._lines: deque[Mapping[str, Any]] = deque(maxlen=_LINES)
        self._begin = time.monotonic()
        self._first: int | None = None
        self._done, self._total = 0, 0
        self._heard: Counter[DeviceId] = Counter()
        self._failures: Counter[DeviceId] = Counter()
        self._reasons: dict[DeviceId, str] = {}
        self._bytes: Counter[str] = Counter()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def watch(self, line: Mapping[str, Any], done: int, total: int) -> None:
        """Add a round."""
        with self._lock:
            if self._first is None:
                self._first = done - 1  # A resumed run begins later.
            self._lines.append(line)
            self._done, self._total = done, total
            self._heard.update(line["heard"])
            self._failures.update(line["failed"].keys())
            self._reasons |= line["failed"]
            self._bytes.update(line["bytes"])

    def before(self, watch: RoundCallback) -> RoundCallback:
        """Return a callback that adds a round here, then calls another."""

        def both(line: RoundRow, done: int, total: int) -> None:
            self.watch(line, done, total)
            watch(line, done, total)

        return both

    def page(self) -> str:
        """Return the page as HTML; every text of a device is escaped."""
        environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        template = environment.from_string(_file("partita.deploy", "status.html"))
        joined, connected = self._hub.joined(), set(self._hub.connected())
        with self._lock:
            devices = sorted(joined, key=lambda device: (-self._failures[device], device))[:_DEVICES]
            seen = self._hub.last_seen()
            rows = [self._row(device, device in connected, seen[device]) for device in devices]
            return template.render(
                name=self._name,
                state=self._state(),
                progress=self._progress(),
                finding=f"{len(joined)} joined, {len(connected)} connected, {len(self._reasons)} have failed",
                devices=rows,
                shown=len(rows),
                total=len(joined),
                refused=self._hub.refused(),
                lines=[_shown_line(line) for line in reversed(self._lines)],
                style=_file("partita.report", "page.css"),
            )

    def metrics(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; prometheus-client calls this."""
        gauges = {
            "partita_devices_joined": ("Devices that have joined.", len(self._hub.joined())),
            "partita_devices_connected": ("Devices that have asked lately.", len(self._hub.connected())),
            "partita_devices_refused": ("Devices that cannot take part.", len(self._hub.refused())),
            "partita_rounds": ("Rounds of the whole run.", self._total),
            "partita_finished": ("Whether the run is over.", int(self._hub.is_over)),
        }
        counters = {
            "partita_rounds_done": ("Committed rounds.", self._done),
            "partita_replies": ("Replies that counted.", self._heard.total()),
            "partita_failures": ("Orders that failed.", self._failures.total()),
            "partita_bytes_up": ("Bytes of changes that have arrived.", self._bytes["up"]),
            "partita_bytes_down": ("Bytes of the shared part that were sent.", self._bytes["down"]),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(name, text, value=value)
        losses = GaugeMetricFamily("partita_loss", "Loss of the last round.", labels=["stage", "work"])
        for line in list(self._lines)[-1:]:
            if line.get("loss") is not None:
                losses.add_metric([str(line["stage"]), str(line["work"])], line["loss"])
        yield losses

    def _state(self) -> str:
        if self._hub.is_over:
            return "The run is over."
        if not self._lines:
            return "Waiting for devices, or for the first round."
        line = self._lines[-1]
        loss = "" if line.get("loss") is None else f", loss {line['loss']:.4g}"
        return (
            f"Stage {line['stage']}: {line['work']}, round {line['round']} of {line.get('rounds', '?')}{loss}"
        )

    def _progress(self) -> str:
        if self._first is None or self._hub.is_over:
            return f"{self._done} of {self._total} rounds are done." if self._total else ""
        own = max(self._done - self._first, 1)
        left = (time.monotonic() - self._begin) / own * (self._total - self._done)
        return f"{self._done} of {self._total} rounds are done, {timedelta(seconds=round(left))} left."

    def _row(self, device: DeviceId, connected: bool, seen: float) -> dict[str, Any]:
        return {
            "device": device,
            "connected": connected,
            "seen": time.strftime("%H:%M:%S UTC", time.gmtime(seen)),
            "heard": self._heard[device],
            "failures": self._failures[device],
            "reason": self._reasons.get(device, ""),
        }


def _shown_line(line: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: line.get(name) for name in ("loss", "metric")}
    counts = {name: len(line[name]) for name in ("asked", "heard", "failed")}
    shown = {name: "" if value is None else f"{value:.4g}" for name, value in numbers.items()}
    return {**{name: line[name] for name in ("stage", "work", "round")}, **shown, **counts}


def _file(package: str, name: str) -> str:
    return (resources.files(package) / name).read_text(encoding="utf-8")


@asynccontextmanager
async def served_status(board: StatusBoard, port: int) -> AsyncIterator[None]:
    """Serve the operator's page and metrics on this machine in this block."""

    def own(answer: Callable[[], web.Response]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            # A page of somebody else's in a browser here must not read it under another name of this machine.
            if request.host.rpartition(":")[0] not in _OWN_NAMES:
                return web.Response(status=403, text="The status is for this machine alone.")
            return answer()

        return handle

    app = web.Application()
    app.router.add_get("/", own(lambda: web.Response(text=board.page(), content_type="text/html")))
    app.router.add_get("/metrics", own(lambda: web.Response(body=board.metrics(), content_type="text/plain")))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=FAREWELL)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield
    finally:
        await runner.cleanup()
