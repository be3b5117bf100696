"""What holds for all tests."""

from pathlib import Path

import pytest

from partita.report import draw


@pytest.fixture
def drawn() -> None:
    """A test that asks for this draws pages."""


@pytest.fixture(autouse=True)
def _no_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts take seconds to draw: runs of tests draw none, unless a test is about them."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(draw, "write_report", lambda folder: Path(folder) / "report.html")
