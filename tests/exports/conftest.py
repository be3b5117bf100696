"""Finished runs, each made once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from exported import finished


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from the kind of a task to the folder of a finished run, which no test may change."""
    runs: dict[str, Path] = {}

    def run_of(kind: str) -> Path:
        if kind == "speech":
            for package in ("soundfile", "kaldi_native_fbank", "jiwer"):
                pytest.importorskip(package, reason="the extra `speech` is not installed")
        if kind not in runs:
            runs[kind] = finished(tmp_path_factory.mktemp(kind), kind)
        return runs[kind]

    return run_of
