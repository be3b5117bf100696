"""Settings and fixtures for all tests."""

import os
from pathlib import Path

import pytest

# Two test processes share two cores, and threads that wait for each other cost half of the time. Set before torch
# is loaded, for processes that tests start as well.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test uses the network. Set before `datasets` is loaded, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture
def drawn() -> None:
    """Let a test draw report pages."""


@pytest.fixture(autouse=True)
def _no_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no report pages, which takes seconds, unless a test asks for `drawn`."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("partita.report.draw.write_report", lambda folder: Path(folder) / "report.html")
