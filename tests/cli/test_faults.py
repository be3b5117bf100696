"""Faults of the machine: one line that names the file, what is safe and the command to continue with."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from marks import slow_but
from partita.cli import main
from partita.runs.folder import RunFolder
from tables import split_of, texts, write

CONFIG = """
workers = 1
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
STUDY = {
    "run": ["run", "c.toml"],
    "compare": ["compare", "c.toml", "compare.seeds=1", "compare.methods=fedalt"],
    "tune": ["tune", "c.toml", "finetune.personal_lr=0.1,0.01"],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "c.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def fail_to_sync(monkeypatch: pytest.MonkeyPatch, code: int, *, after: int) -> None:
    """Let the system refuse to write to the disk after so many successes."""
    done = 0

    def sync(descriptor: int) -> None:
        nonlocal done
        done += 1
        if done > after:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", sync)


@pytest.mark.parametrize("command", STUDY)
@pytest.mark.parametrize("code", slow_but([errno.ENOSPC, errno.EIO], errno.ENOSPC))
def test_a_fault_names_the_file_and_the_command_to_resume_with(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, code: int
) -> None:
    with monkeypatch.context() as patched:
        fail_to_sync(patched, code, after=25)
        assert main([*STUDY[command], "out=x", "--quiet"]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"partita: {os.strerror(code)}: `x/")
    assert line.endswith(
        f"All committed rounds are safe: when the cause is mended, resume with `partita {command} --resume x`."
    )
    assert main([command, "--resume", "x", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("after", "file", "how", "again"),
    [
        (1, "x/config.toml.tmp", "start it again with `out=x`", ["run", "c.toml", "out=x"]),
        (2, "x", "resume with `--resume x`", ["run", "--resume", "x"]),
    ],
)
def test_a_fault_before_the_first_round_says_how_to_begin_again(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    after: int,
    file: str,
    how: str,
    again: list[str],
) -> None:
    with monkeypatch.context() as patched:
        fail_to_sync(patched, errno.EIO, after=after)
        assert main(["run", "c.toml", "out=x", "--quiet"]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    mended = "Nothing was trained yet: when the cause is mended"
    assert line == f"partita: Input/output error: `{file}`. {mended}, {how}."
    assert main([*again, "--quiet"]) == 0


def test_a_fault_while_the_report_is_written_says_that_only_it_is_missing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path, **_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", f"{folder}/report.html")

    monkeypatch.setattr("partita.report.write.write_report", fail)

    assert main(["run", "c.toml", "out=x", "--quiet"]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    missing = "Only the report is missing: write it with `partita report x`."
    assert line == f"partita: No space left on device: `x/report.html`. {missing}"


@pytest.mark.parametrize("command", slow_but(STUDY, "run", "tune"))
def test_a_file_that_may_not_be_written_is_no_failure_of_a_device_or_a_cell(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    def refuse(path: Path, *pieces: bytes) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("partita.device.store.write_private", refuse)
        assert main([*STUDY[command], "out=x", "--quiet"]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("partita: Permission denied: `x/")
    assert line.endswith(f"resume with `partita {command} --resume x`.")
    assert main([command, "--resume", "x", "--quiet"]) == 0


@pytest.mark.parametrize("command", slow_but(["compare", "tune"], "tune"))
def test_a_fault_before_the_first_round_of_a_cell_or_trial_says_how_to_resume_the_study(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    def fail(config: object, beside: object, folder: RunFolder, *_: object) -> None:
        folder.derived_file.write_text('{"kind": "synthetic"}')
        raise OSError(errno.ENOSPC, "No space left on device", str(folder.config_file))

    with monkeypatch.context() as patched:
        patched.setattr("partita.studies.run.write_config", fail)
        assert main([*STUDY[command], "out=x", "--quiet"]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("partita: No space left on device: `x/")
    assert line.endswith(f"resume with `partita {command} --resume x`.")
    assert list((here / "x").rglob("derived.json"))
    assert main([command, "--resume", "x", "--quiet"]) == 0


def test_a_fault_while_the_initial_model_is_read_says_how_to_resume(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("partita.config.tasks.tensors_in", fail)
        assert main([*STUDY["compare"], "out=x", "--quiet"]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("partita: Input/output error: `")
    assert line.endswith("resume with `partita compare --resume x`.")
    assert main(["compare", "--resume", "x", "--quiet"]) == 0


def test_an_interrupted_import_says_how_to_go_on(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("partita.config.importing.import_data", interrupt)

    assert main(["import", "sort", "t.parquet", "out.parquet", "--quiet"]) == 130

    (line,) = capsys.readouterr().err.splitlines()
    again = "give the same command again, `partita import sort t.parquet out.parquet --quiet`."
    assert line.startswith(f"partita: Interrupted. No table was written: {again}")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow beyond a size in this block: as on a full disk, writing fails in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def mixed_table(path: Path) -> None:
    rows = texts(devices=3, rows=200, split=split_of, noise=lambda *_: os.urandom(100))
    write(path, rows[::2] + rows[1::2], group=100)


def test_a_full_disk_while_a_table_is_sorted_is_no_wrong_request(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed_table(here / "t.parquet")

    with largest_file(20_000):
        code = main(["import", "sort", "t.parquet", "out.parquet", "--quiet"])

    (line,) = capsys.readouterr().err.splitlines()
    assert code == 1
    assert line.startswith("partita: File too large: `out.parquet.partita-import/")
    assert "give the same command again, `partita import sort t.parquet out.parquet --quiet`." in line
    assert sorted(path.name for path in here.iterdir()) == ["c.toml", "t.parquet"]
    assert main(["import", "sort", "t.parquet", "out.parquet", "--quiet"]) == 0
    assert pq.read_metadata(here / "out.parquet").num_rows == 600


def test_a_full_disk_while_a_run_sorts_its_table_is_no_wrong_request(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed_table(here / "t.parquet")
    (here / "text.toml").write_text('[task]\nkind = "text"\ndata = "t.parquet"\nsort = true\n')

    with largest_file(20_000):
        code = main(["run", "text.toml", "out=x"])

    line = capsys.readouterr().err.splitlines()[-1]
    assert code == 1
    assert line.startswith("partita: File too large: `")


def test_an_exception_of_a_device_is_no_fault_of_the_machine(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "secret")
    error.add_note("In a visit of device 'd0'.")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("partita.studies.run.finish", fail)

    assert main(["run", "c.toml", "out=x", "--quiet"]) == 1

    text = capsys.readouterr().err
    assert text.startswith("Traceback")
    assert "In a visit of device 'd0'. Resume with `partita run --resume x`" in text.splitlines()[-1]


@pytest.mark.slow
def test_commands_print_in_an_ascii_locale(here: Path) -> None:
    rows = [
        {"device": device, "x": float(row), "label": row % 2, "split": "test" if row == 3 else "train"}
        for device in ("é", "日本語", "ada")
        for row in range(4)
    ]
    write(here / "t.parquet", rows)
    (here / "c.toml").write_text(
        CONFIG.replace(
            'kind = "synthetic"\ndevices = 3\nexamples = 6', 'kind = "tabular"\ndata = "t.parquet"'
        )
        + "\n[report]\nwatchers = []  # naïve\n",
        encoding="utf-8",
    )
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    commands = [
        ["run", "c.toml", "out=r"],
        ["report", "r"],
        ["describe", "c.toml"],
        ["config"],
        ["compare", "c.toml", "--dry-run", "compare.seeds=1"],
        ["run", "c.toml", "task.data=日本.parquet"],
    ]
    for command in commands:
        ended = subprocess.run(
            [sys.executable, "-m", "partita", *command],
            check=False,
            capture_output=True,
            env={**os.environ, **ascii_locale},
        )

        assert b"Traceback" not in ended.stderr, ended.stderr.decode(errors="replace")
        assert ended.returncode == (2 if command[-1].endswith("日本.parquet") else 0)
        assert ended.stdout.isascii()
        assert ended.stderr.isascii()


def test_an_import_whose_table_is_not_confirmed_says_that_it_is_there(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed_table(here / "mixed.parquet")
    replace = Path.replace

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error", str(here))

    with monkeypatch.context() as patched:

        def one_way(path: Path, target: Path) -> Path:
            patched.setattr(Path, "replace", fail)  # The disk takes one more name, and nothing else.
            patched.setattr("partita.durable.sync_folder", fail)
            return replace(path, target)

        patched.setattr(Path, "replace", one_way)
        assert main(["import", "sort", "mixed.parquet", "out.parquet", "--quiet"]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("partita: Input/output error: ")
    assert line.endswith("`out.parquet` is complete, but if the machine stops now, it may be gone.")
    assert (
        pq.read_metadata(here / "out.parquet").num_rows == pq.read_metadata(here / "mixed.parquet").num_rows
    )
