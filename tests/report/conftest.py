"""Fixtures for tests of reports."""

import pytest

from partita.report import write


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the page without its figures, which take seconds."""
    monkeypatch.setattr(write, "write_figures", lambda charts, data, folder: None)
