"""Searches from Python: those of the command, with a task of one's own."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import partita
from api.test_comparison import CONFIG, SETTINGS, task
from partita.cli import main
from partita.errors import ConfigError

KEY = "finetune.personal_lr"


def tuned(out: Path, **arguments: Any) -> partita.TuningResult:
    return partita.tune(task(), {KEY: (0.01, 0.1)}, settings=SETTINGS, out=out, **arguments)


def test_a_search_from_python_has_the_trials_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mine.toml").write_text(CONFIG)
    command = ["tune", str(tmp_path / "mine.toml"), f"{KEY}=0.01,0.1", f"out={tmp_path / 'command'}"]
    assert main([*command, "--json", "--quiet"]) == 0
    printed = json.loads(capsys.readouterr().out)

    result = tuned(tmp_path / "mine")

    assert [dataclasses.asdict(trial) for trial in result.trials] == printed["trials"]
    assert result.best == printed["best"]["choice"]
    assert repr(result) == (
        f"TuningResult(2 trials in {tmp_path / 'mine'}; best: validation error "
        f"{printed['best']['value']:.4f} with {result.best})"
    )
    assert result._repr_html_().count("<tr>") == 3
    assert (tmp_path / "mine/trials.csv").read_text() == (tmp_path / "command/trials.csv").read_text()
    assert list(result.tuned.warnings) == caplog.messages[: len(result.tuned.warnings)]


@pytest.mark.parametrize("choices", [0.1, "0.1"])
def test_one_value_where_a_list_is_needed_is_said(choices: Any) -> None:
    with pytest.raises(ConfigError, match=rf"`{KEY}` must be a list, such as `\[{choices!r}\]`, got"):
        partita.tune(task(), {KEY: choices})


@pytest.mark.slow
def test_a_search_is_resumed_with_the_same_space(tmp_path: Path) -> None:
    first = tuned(tmp_path / "mine")

    with pytest.raises(ConfigError, match="was started with 0 trials of"):
        tuned(tmp_path / "mine", resume=True, trials=1)
    assert main(["tune", "--resume", str(tmp_path / "mine")]) == 2
    assert tuned(tmp_path / "mine", resume=True, workers=2).trials == first.trials
