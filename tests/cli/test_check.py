"""`partita check` and `--reset-device`, from the command line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from partita.cli import main
from partita.config.reading import read_config
from partita.runs.folder import RunFolder
from partita.runs.tensors import store_of
from partita.studies import run as runner

CONFIG = """
name = "mine"
workers = 1
[task]
kind = "small:affine_task"
[pretrain]
rounds = 2
devices_per_round = 3
batch_size = 4
[personalize]
rounds = 3
devices_per_round = 3
batch_size = 4
[finetune]
epochs = 1
batch_size = 4
[compare]
methods = ["fedalt"]
seeds = 1
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(CONFIG)
    return tmp_path


def checked(folder: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    capsys.readouterr()
    code = main(["check", folder])
    output = capsys.readouterr()
    return code, [*output.out.splitlines(), *output.err.splitlines()]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def interrupted(rounds: int) -> RunFolder:
    def watch(line: Any, done: int, total: int) -> None:
        if done == rounds:
            raise KeyboardInterrupt

    run = runner.prepare(read_config(Path("mine.toml"), ["out=run"]), Path())
    with pytest.raises(KeyboardInterrupt):
        runner.finish(run, watch)
    return RunFolder("run")


def test_a_run_is_checked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked("run", capsys) == (
        2,
        ["partita: `run` holds no run, comparison or search: it has no `config.toml`."],
    )
    main(["run", "mine.toml", "out=run", "finetune.baseline=true"])
    assert checked("run", capsys) == (0, ["The run in run is sound."])

    flip(here / "run/summary.json")
    (here / "run/finetune/rounds.jsonl").unlink()

    assert checked("run", capsys) == (
        1,
        [
            "`run/summary.json` is damaged: its content is not what was committed. Restore it from a copy.",
            "`run/finetune/rounds.jsonl` is missing: restore it from a copy.",
            "The run in run is damaged: 2 problems.",
        ],
    )
    assert main(["check", "run", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["kind"] == "run"


def test_a_damaged_run_is_not_shown_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "mine.toml", "out=run"])
    flip(next((here / "run/personal").iterdir()))

    for command in (["run", "--resume", "run"], ["report", "run"]):
        capsys.readouterr()
        assert main([*command, "--quiet"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "the personal part of device" in line


def test_a_device_is_reset_by_the_command_that_the_error_names(
    here: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = interrupted(5)
    device = next(iter(run.parts))
    flip(store_of(run).path_of(device))
    capsys.readouterr()
    assert main(["run", "--resume", "run", "--quiet"]) == 2
    command = capsys.readouterr().err.split("`")[-2].split()
    assert command == ["partita", "run", "--resume", "run", "--reset-device", device]

    assert main([*command[1:], "--quiet"]) == 0

    assert f"Device '{device}' starts again from the initial personal part." in caplog.messages
    lost = f"device '{device}' had lost its personal part and started again after 5 rounds"
    assert lost in capsys.readouterr().out
    assert checked("run", capsys)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine.toml", "--reset-device", "d0"], "`--reset-device` needs `--resume RUN_DIR`"),
        (["--resume", "run", "--reset-device", "nobody"], "asked a device 'nobody'"),
        (["--resume", "none", "--reset-device", "d0"], "`none` holds no run"),
    ],
)
def test_a_reset_that_is_not_possible_is_refused(
    arguments: list[str], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(5)
    capsys.readouterr()

    assert main(["run", *arguments]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.slow
def test_a_comparison_is_checked_with_all_cells(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", "mine.toml", "out=grid", "--quiet"])
    code, lines = checked("grid", capsys)
    assert (code, lines[0].endswith("runs in grid is sound.")) == (0, True)

    cell = min((here / "grid/cells").glob("fedalt*/"))
    flip(cell / "devices.parquet")
    assert checked("grid", capsys)[1][0].startswith(f"`grid/cells/{cell.name}/devices.parquet` is damaged")
    for command in (["compare", "--resume", "grid"], ["report", "grid"]):
        capsys.readouterr()
        assert main([*command, "--quiet"]) == 2
        assert "devices.parquet` is damaged" in capsys.readouterr().err

    (here / "grid/comparison.json").unlink()
    assert checked("grid", capsys)[1][0] == "`grid/comparison.json` is missing: restore it from a copy."


@pytest.mark.slow
def test_a_search_is_checked_with_all_trials(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    space = "finetune.personal_lr=0.1,0.01"
    main(["tune", "mine.toml", "task.kind=compared:plain", space, "out=search", "--quiet"])
    assert checked("search", capsys)[0] == 0

    flip(here / "search/trial-1.json")
    shutil.rmtree(here / "search/trial-0/shared")
    code, lines = checked("search", capsys)

    assert code == 1
    assert "`search/trial-1.json` is damaged: its values are not those of its sha256." in lines[0]
    assert any("search/trial-0/shared/pretrained.safetensors` is missing" in line for line in lines)


def test_a_run_whose_config_is_gone_is_no_dead_end(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    Path("run/commit.json").write_text("{}")

    for arguments in (
        ["run", "--resume", "run"],
        ["run", "--resume", "run", "--reset-device", "d0"],
        ["run", "mine.toml", "out=run"],
        ["export", "run", "d0", "d0.safetensors"],
    ):
        assert main(arguments) == 2
        line = "partita: `run/config.toml` is missing: restore it from a copy.\n"
        assert capsys.readouterr().err == line, arguments
