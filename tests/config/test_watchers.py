"""Watchers that a config names: looked for before a run begins."""

import sys
from pathlib import Path
from typing import Any

import pytest

from partita.config.building import build_watchers
from partita.config.provenance import made_with
from partita.config.reading import config_of
from partita.config.schema import ReportConfig
from partita.errors import ConfigError

NUMBER = 3


def make(folder: Path, config: Any) -> Any:
    """A watcher that is told of nothing."""


def watch(line: Any, done: int, total: int) -> None:
    """What is often mistaken for what makes a watcher."""


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let import paths find this module, whatever the way in which tests are imported."""
    monkeypatch.setitem(sys.modules, "test_watchers", sys.modules[__name__])


def test_watchers_are_found_by_their_import_paths() -> None:
    assert build_watchers(ReportConfig(watchers=["test_watchers:make"])) == {"test_watchers:make": make}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("test_watchers", "an import path such as 'package.module:function', got 'test_watchers'"),
        ("test_watchers:absent", "'test_watchers:absent' does not import: AttributeError"),
        ("nowhere:make", "'nowhere:make' does not import: ModuleNotFoundError"),
        ("test_watchers:NUMBER", "must be a function of a run's folder and its config, got 3"),
        ("test_watchers:watch", "of a run's folder and its config: missing a required argument: 'total'"),
    ],
)
def test_a_wrong_path_is_said_beforehand(path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        build_watchers(ReportConfig(watchers=[path]))

    assert "`report.watchers`" in str(caught.value)


def test_tensorboard_must_be_there_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    build_watchers(ReportConfig(tensorboard=True))
    monkeypatch.setitem(sys.modules, "tensorboard", None)

    build_watchers(ReportConfig())
    with pytest.raises(ConfigError, match="`report.tensorboard` needs tensorboard: pip install"):
        build_watchers(ReportConfig(tensorboard=True))


def test_the_code_of_watchers_is_part_of_what_a_run_was_made_with(tmp_path: Path) -> None:
    config = config_of({"name": "test", "report": {"watchers": ["test_watchers:make"]}})

    assert made_with(config, tmp_path)["test_watchers"].startswith("sha256 ")
