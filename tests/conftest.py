"""Fixtures for all tests."""

from pathlib import Path

import pytest

from partita.report import write


@pytest.fixture
def reports() -> None:
    """Write real reports in a test that uses this fixture."""


@pytest.fixture(autouse=True)
def _no_reports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no report after a run, because charts take seconds, unless a test uses `reports`."""
    if "reports" not in request.fixturenames:
        monkeypatch.setattr(write, "write_report", lambda folder: Path(folder) / "report.html")
