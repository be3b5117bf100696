"""Output that nobody reads on, as with `| head`: a command ends without a word."""

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
        ["compare", *SHORT, "methods=fedavg", "seeds=1", "compare.baseline=fedavg"],
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


@pytest.mark.slow
def test_head_ends_a_command_quietly() -> None:
    code = "import sys; from partita.cli import main; sys.exit(main())"
    command = f"set -o pipefail; '{sys.executable}' -P -c '{code}' config | head -n 1"

    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert done.returncode in (0, 141)  # All of it may have been written before `head` ends.
