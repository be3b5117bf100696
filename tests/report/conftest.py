"""What tests of pages have in common."""

import pytest

from partita.report import page


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that asks for this reads the page alone, and waits for no figures."""
    monkeypatch.setattr(page, "write_figures", lambda charts, data, folder: None)
