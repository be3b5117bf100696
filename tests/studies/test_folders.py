"""Folders of runs, comparisons and searches: messages say what a folder holds and how it is resumed."""

from pathlib import Path

import pytest

from partita.cli import main
from partita.seals import sealed_text
from sealing import write_sealed

FILES = {"search": "search.json", "comparison": "comparison.json", "run": "costs.json"}
"""A file by which the kind of a folder is known."""


def folder(kind: str, task: str = "synthetic") -> None:
    """Write a folder that has begun and in which nothing is finished."""
    Path(kind).mkdir()
    text = f'name = "mine"\n[task]\nkind = "{task}"\n[made_with]\npython = "3"\n'
    Path(kind, "config.toml").write_bytes(sealed_text(text))
    cell = {"method": "", "partition": "", "seed": 1, "values": {}}
    method = {"title": "Start", "citation": None, "begins_pretrained": False, "trains_alone": False}
    content = {"cells": [cell], "methods": {"": method}, "space": {}, "trials": 0}
    write_sealed(Path(kind, FILES[kind]), content)


@pytest.mark.parametrize(
    ("kind", "command", "message"),
    [
        (
            "search",
            ["report", "search"],
            "`search` holds a search, which has no report: give the folder of a trial, such as "
            "`search/trial-0`, or of a run with the best values.",
        ),
        (
            "search",
            ["report", "search", "other"],
            "`search` holds a search, which has no report: give the folder of a trial, such as "
            "`search/trial-0`, or of a run with the best values.",
        ),
        (
            "search",
            ["run", "--resume", "search"],
            "`search` holds a search, not a run: resume it with `partita tune --resume search`.",
        ),
        (
            "comparison",
            ["run", "--resume", "comparison"],
            "`comparison` holds a comparison, not a run: resume it with `partita compare --resume comparison`.",
        ),
        (
            "run",
            ["report", "run"],
            "The run in `run` is not finished: resume it with `partita run --resume run`.",
        ),
    ],
)
@pytest.mark.usefixtures("reports")
def test_a_folder_of_another_kind_is_named_with_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    command: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder(kind)

    assert main(command) == 2

    assert capsys.readouterr().err == f"partita: {message}\n"


@pytest.mark.parametrize("kind", ["run", "comparison"])
@pytest.mark.usefixtures("reports")
def test_what_was_started_in_python_is_resumed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder(kind, task="python")

    assert main(["report", kind]) != 0

    line = capsys.readouterr().err
    assert "not finished: resume" in line
    assert line.endswith(" in Python, with the same arguments and `resume=True`.\n")


@pytest.mark.parametrize(("kind", "command"), [("comparison", "compare"), ("search", "tune")])
def test_a_config_that_was_not_written_by_its_study_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder(kind)
    Path(kind, "config.toml").write_bytes(sealed_text('name = "mine"\n[task]\nkind = "synthetic"\n'))

    assert main([command, "--resume", kind]) == 2

    line = capsys.readouterr().err
    assert f"partita: `{kind}/config.toml` has no section [made_with]" in line
    assert f"or start a new {kind}." in line
