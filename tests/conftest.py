"""Settings and fixtures for all tests."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# Two test processes share two cores, and threads that wait for each other cost half of the time. Set before torch
# is loaded, for processes that tests start as well.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test uses the network. Set before `datasets` is loaded, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"
# In a background job Ctrl-C is ignored, also by processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_fsync() -> Iterator[None]:
    """Do not wait for the disk: only a power failure would show the difference."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_core() -> Iterator[None]:
    """Visit devices in the process of a test unless it asks for workers: starting them takes longer."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("partita.executors.settings.usable_cores", lambda: 1)
        yield


@pytest.fixture
def reports() -> None:
    """Write real reports in a test that uses this fixture."""


@pytest.fixture(autouse=True)
def _no_reports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no report after a run, because charts take seconds, unless a test uses `reports`."""
    if "reports" not in request.fixturenames:
        monkeypatch.setattr(
            "partita.report.write.write_report", lambda folder, **_: Path(folder) / "report.html"
        )


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write report pages without their figures, which take seconds."""
    monkeypatch.setattr("partita.report.write.write_figures", lambda charts, data, folder: None)
