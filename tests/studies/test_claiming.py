"""Claiming folders: what a process leaves that ends too early is no dead end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partita import durable
from partita.cli import main
from partita.config.schema import Config
from partita.errors import ConfigError, Damaged, InUse
from partita.studies.claiming import claimed

CONFIG = """
[task]
kind = "synthetic"
devices = 3
examples = 6
[pretrain]
rounds = 1
devices_per_round = 2
[personalize]
rounds = 1
devices_per_round = 2
[finetune]
epochs = 1
"""
COMMANDS = {
    "run": ["run", "c.toml"],
    "compare": ["compare", "c.toml", "compare.seeds=1", "compare.methods=fedalt"],
    "tune": ["tune", "c.toml", "finetune.personal_lr=0.1,0.01"],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "c.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Killed(BaseException):
    """Ends a command like SIGKILL: nothing in Partita handles it."""


def stopping_at(name: str) -> Callable[..., None]:
    """Return a `write_file` that ends the process once it has written a file whose name begins like this."""
    write = durable.write_file

    def fail(path: Path, content: bytes, **options: Any) -> None:
        write(path, content, **options)
        if path.name.startswith(name):
            raise Killed(path.name)

    return fail


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_was_killed_before_its_config_was_written_can_be_repeated(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(durable, "write_file", stopping_at("config.toml"))
        with pytest.raises(Killed):
            main([*COMMANDS[command], "out=x"])
    assert not (here / "x/config.toml").exists()
    assert list((here / "x").iterdir())

    assert main([command, "--resume", "x"]) == 2
    assert main([*COMMANDS[command], "out=x", "workers=1", "--quiet"]) == 0

    assert (here / "x/config.toml").exists()
    assert "is started again with `out=x`" in capsys.readouterr().err


def test_an_empty_folder_can_be_claimed_and_one_with_files_cannot(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")

    with claimed(Config(name="x", out=str(tmp_path / "empty"))) as folder:
        assert folder == tmp_path / "empty"
    for name in ("mine", "file"):
        with (
            pytest.raises(ConfigError, match=f"{name}` already exists and holds no run: give another `out`"),
            claimed(Config(name="x", out=str(tmp_path / name))),
        ):
            pass
    assert (tmp_path / "mine/notes.txt").read_text() == "mine"


def test_the_folder_of_a_run_is_resumed_and_not_claimed(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")

    with (
        pytest.raises(ConfigError, match=f"exists: give another `out`, or resume with `--resume {tmp_path}`"),
        claimed(Config(name="x", out=str(tmp_path))),
    ):
        pass


def test_a_folder_with_a_commit_and_no_config_is_damaged_and_not_claimed(tmp_path: Path) -> None:
    (tmp_path / "commit.json").write_text("")

    with (
        pytest.raises(Damaged, match=f"`{tmp_path}/config.toml` is missing: restore it from a copy."),
        claimed(Config(name="x", out=str(tmp_path))),
    ):
        pass


def test_a_folder_in_which_another_process_begins_is_not_taken_over(tmp_path: Path) -> None:
    config = Config(name="x", out=str(tmp_path / "x"))

    # A lock is that of an open folder, not of a process: this one stands for another process, too.
    with claimed(config), pytest.raises(InUse, match="Another process is writing"), claimed(config):
        pass

    with claimed(config) as folder:
        assert folder == tmp_path / "x"


@pytest.mark.parametrize("key", ["name", "out"])
def test_a_name_that_is_too_long_leaves_no_folder_behind(
    here: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    value = "x" * 300 if key == "name" else f"new/folders/{'x' * 300}"

    assert main(["run", "c.toml", f"{key}={value}"]) == 2

    line = capsys.readouterr().err
    assert "Cannot create the run's folder" in line
    assert value in line
    assert "File name too long" in line
    assert list(here.iterdir()) == [here / "c.toml"]
