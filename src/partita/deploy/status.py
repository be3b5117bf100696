"""The server's state for its operator: a live page in the look of reports, and metrics for Prometheus."""

import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
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


@dataclass
class _Part:
    """The rounds of a run, or of an onboarding after it, from the first one that ended here."""

    late: Sequence[DeviceId]
    """The devices that are onboarded; none: it is the run."""
    first: int
    """The rounds that were done when the clock started; a resumed run begins later."""
    begin: float
    """The time when the clock started."""
    done: int = 0
    total: int = 0
    end: float = 0.0
    """The time of the last round's end."""

    @property
    def left(self) -> str:
        """The time left as text; empty after one round, when nothing is known of the time of a round."""
        if (own := self.done - self.first) < 1:
            return ""
        return f", {timedelta(seconds=round((self.end - self.begin) / own * (self.total - self.done)))} left"


class StatusBoard:
    """The state of a run, filled in after every round.

    Args:
        name: the name of the run.
        hub: who has joined.
        clock: the time in seconds.
    """

    def __init__(self, name: str, hub: Hub, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._hub = hub
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: deque[Mapping[str, Any]] = deque(maxlen=_LINES)
        self._parts: list[_Part] = []
        """The run and the onboardings after it."""
        self._heard: Counter[DeviceId] = Counter()
        self._failures: Counter[DeviceId] = Counter()
        self._reasons: dict[DeviceId, str] = {}
        self._bytes: Counter[str] = Counter()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def watch(self, line: Mapping[str, Any], done: int, total: int) -> None:
        """Add a round."""
        with self._lock:
            self._count(done, total)
            self._lines.append(line)
            self._heard.update(line["heard"])
            self._failures.update(line["failed"].keys())
            self._reasons |= line["failed"]
            self._bytes.update(line["bytes"])

    def _count(self, done: int, total: int) -> None:
        """Count a round of the run or of an onboarding, whose rounds are numbered from 1 on again."""
        now, late = self._clock(), self._hub.onboarding
        if not self._parts or self._parts[-1].late != late:
            self._parts.append(_Part(late, first=done, begin=now))
        part = self._parts[-1]
        part.done, part.total, part.end = done, total, now

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
            "partita_devices_onboarding": ("Late devices that are onboarded.", len(self._hub.onboarding)),
            "partita_rounds": ("Rounds of the run and of onboardings.", self._total),
            "partita_finished": ("Whether the run and onboardings are over.", int(self._is_over)),
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

    @property
    def _done(self) -> int:
        return sum(part.done for part in self._parts)

    @property
    def _total(self) -> int:
        return sum(part.total for part in self._parts)

    @property
    def _is_over(self) -> bool:
        return self._hub.is_over and not self._hub.onboarding

    def _state(self) -> str:
        if self._is_over:
            return "The run is over."
        late = self._hub.onboarding
        if not self._parts or self._parts[-1].late != late:
            return f"{_onboarding(late)}." if late else "Waiting for devices, or for the first round."
        line = self._lines[-1]
        loss = "" if line.get("loss") is None else f", loss {line['loss']:.4g}"
        head = f"{_onboarding(late)}, stage" if late else "Stage"
        where = f"round {line['round']} of {line.get('rounds', '?')}"
        return f"{head} {line['stage']}: {line['work']}, {where}{loss}"

    def _progress(self) -> str:
        if self._is_over:
            return f"{self._done} of {self._total} rounds are done." if self._total else ""
        if not self._parts or self._parts[-1].late != self._hub.onboarding:
            return ""
        part = self._parts[-1]
        return f"{part.done} of {part.total} rounds are done{part.left}."

    def _row(self, device: DeviceId, connected: bool, seen: float) -> dict[str, Any]:
        return {
            "device": device,
            "connected": connected,
            "seen": time.strftime("%H:%M:%S UTC", time.gmtime(seen)),
            "heard": self._heard[device],
            "failures": self._failures[device],
            "reason": self._reasons.get(device, ""),
        }


def _onboarding(late: Sequence[DeviceId]) -> str:
    return f"The run is over; late devices are onboarded, {len(late)} now"


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
