"""User code: found only by the import paths of a config, after everything that is installed."""

import sys
from pathlib import Path
from typing import Any

import pytest

from partita.config.provenance import find_own_code


@pytest.fixture(autouse=True)
def before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The search path before a test; the current folder, the config's and a recorded one are empty."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("current", "config", "recorded"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "current")
    return list(sys.path)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"task": {"kind": "digits", "data": "planted_module.parquet"}},
        {"task": {"url": "planted_module://x"}},
        {"task": {"kind": "sklearn.datasets:load_digits"}, "model": {"name": "json:loads"}},
        {"made_with": {"code": "../recorded", "command": "partita run planted_module:x"}},
        {"made_with": 3},
    ],
)
def test_without_user_code_nothing_is_added(
    values: dict[str, Any], before: list[str], tmp_path: Path
) -> None:
    for folder in ("current", "config", "recorded"):
        for name in ("planted_module", "sklearn", "json"):
            (tmp_path / folder / f"{name}.py").touch()

    find_own_code(values, tmp_path / "config")

    assert sys.path == before


@pytest.mark.parametrize(
    "values",
    [
        {"task": {"kind": "planted_module:make"}},
        {"model": {"name": "planted_module.part:make"}},
        {"report": {"watchers": ["digits", "planted_module:make"]}},
        {"compare": {"methods": ["planted_module:METHOD-stateless"]}},
        {"compare": {"settings": {"planted_module:METHOD": {}}}},
        {"personalize.method": ("fedalt", "planted_module:METHOD")},
    ],
)
def test_a_named_module_is_found_at_the_end_of_the_path(
    values: dict[str, Any], before: list[str], tmp_path: Path
) -> None:
    (tmp_path / "config/planted_module.py").touch()

    find_own_code(values, tmp_path / "config")
    find_own_code(values, tmp_path / "config")

    assert sys.path == [*before, str(tmp_path / "config")]


def test_a_folder_of_the_same_name_does_not_hide_a_module(before: list[str], tmp_path: Path) -> None:
    (tmp_path / "current/planted_module").mkdir()
    (tmp_path / "config/planted_module.py").touch()

    find_own_code({"task": {"kind": "planted_module:make"}}, tmp_path / "config")

    assert sys.path == [*before, str(tmp_path / "config")]


def test_a_package_without_init_file_is_found(before: list[str], tmp_path: Path) -> None:
    (tmp_path / "config/planted_module").mkdir()
    (tmp_path / "config/planted_module/part.py").touch()

    find_own_code({"task": {"kind": "planted_module.part:make"}}, tmp_path / "config")

    assert sys.path == [*before, str(tmp_path / "config")]


def test_the_folder_of_a_recorded_run_comes_first_and_the_configs_last(
    before: list[str], tmp_path: Path
) -> None:
    values = {"task": {"kind": "planted_module:make"}, "made_with": {"code": "../recorded"}}
    added = []
    for folder in ("config", "current", "recorded"):
        (tmp_path / folder / "planted_module.py").touch()
        find_own_code(values, tmp_path / "config")
        added.append(Path(sys.path[-1]).resolve())
        sys.path[:] = before

    assert added == [tmp_path / "config", tmp_path / "current", tmp_path / "recorded"]
