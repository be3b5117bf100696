"""Output that nobody reads on, as with `| head`, or that cannot be written."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest

from partita.cli import main

SHORT = ["pretrain.rounds=1", "personalize.rounds=0", "finetune.epochs=0", "model.width=2"]


@contextmanager
def no_reader() -> Iterator[None]:
    """Give commands an output whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream, redirect_stdout(stream):
        yield
        stream.flush()  # As Python does at its end.


@pytest.mark.parametrize("arguments", [["config"], ["--help"], ["run", "--help"], ["describe"]])
def test_a_command_without_a_reader_ends_quietly(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with no_reader():
        assert main(arguments) == 141

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", *SHORT, "finetune.baseline=false"],
        pytest.param(
            ["compare", *SHORT, "methods=fedavg", "seeds=1", "compare.baseline=fedavg"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_result_without_a_reader_still_has_its_report(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[Path] = []
    monkeypatch.setattr("partita.report.write.write_report", lambda folder: reports.append(folder) or folder)
    monkeypatch.chdir(tmp_path)

    with no_reader():
        assert main([*arguments, "--quiet", "out=a"]) == 141

    assert reports == [Path("a")]


def test_a_broken_pipe_of_a_device_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        error = BrokenPipeError()
        error.add_note("On device 'a'.")
        raise error

    monkeypatch.setattr("partita.cli.describe.config", fail)

    with pytest.raises(BrokenPipeError):
        main(["config"])


def printing(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let the command `config` print a text."""
    monkeypatch.setattr("partita.cli.describe.config", lambda _: sys.stdout.write(text) * 0)


@pytest.mark.parametrize("length", [10, 100_000])  # It is written at the end, or at once.
def test_output_that_cannot_be_written_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], length: int
) -> None:
    printing(monkeypatch, "x" * length)

    with Path("/dev/full").open("w") as stream, redirect_stdout(stream):
        assert main(["config"]) == 1
        stream.flush()  # As Python does at its end.

    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left on device." in line


def test_a_closed_output_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printing(monkeypatch, "x")
    monkeypatch.setattr(sys, "stdout", None)

    assert main(["config"]) == 0

    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_head_ends_a_command_quietly() -> None:
    code = "import sys; from partita.cli import main; sys.exit(main())"
    command = f"set -o pipefail; '{sys.executable}' -P -c '{code}' config | head -n 1"

    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert done.returncode in (0, 141)  # All of it may have been written before `head` ends.
