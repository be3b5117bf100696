"""Resuming a run with its files: known by content, found after a move; and the values derived from them."""

import hashlib
import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import partita
from marks import slow_but
from partita.cli import main
from partita.config.reading import read_config
from partita.errors import ConfigError
from partita.runs.folder import RunFolder
from partita.studies import run as runner
from partita.tasks.tabular import tabular
from partita.training.journal import RoundRow
from tables import write

CONFIG = """
[task]
kind = "tabular"
data = "t.parquet"
[pretrain]
rounds = 4
devices_per_round = 2
[personalize]
rounds = 3
devices_per_round = 2
[finetune]
epochs = 1
"""


def rows(count: int = 8, *, flip: bool = False) -> list[dict[str, Any]]:
    return [
        {
            "device": f"d{device}",
            "split": "test" if number % 4 == 0 else "train",
            "x": float(number * (device + 1)),
            "y": float(number % 3),
            "label": (number + flip) % 2,
        }
        for device in range(3)
        for number in range(count)
    ]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("PARTITA_DATA", raising=False)
    (tmp_path / "mine.toml").write_text(CONFIG)
    write(tmp_path / "t.parquet", rows())
    return tmp_path


def interrupted(rounds: int, *overrides: str, out: str = "run") -> Path:
    """Start a run and interrupt it after some rounds."""
    run = runner.prepare(read_config(Path("mine.toml"), [*overrides, f"out={out}"]), Path())

    def watch(line: RoundRow, done: int, total: int) -> None:
        if done == rounds:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.finish(run, watch)
    return run.folder.path


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line with which a command is refused."""
    capsys.readouterr()
    assert main(list(arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_run_is_not_resumed_with_other_labels_in_a_table_of_the_same_size(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, size = interrupted(2), Path("t.parquet").stat().st_size
    write(Path("t.parquet"), rows(flip=True))
    assert Path("t.parquet").stat().st_size == size

    line = refusal(capsys, "run", "--resume", str(run))

    table = here.resolve() / "t.parquet"
    assert line.startswith(f"partita: `{table}` has other content than when the run started: restore the")
    write(Path("t.parquet"), rows())
    assert main(["run", "--resume", str(run)]) == 0


@pytest.mark.parametrize("rounds", slow_but([2, 8], 2))
def test_after_rows_were_added_a_new_run_starts_from_the_model(
    rounds: int, here: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = interrupted(rounds)
    derived = RunFolder(run).derived
    write(Path("t.parquet"), rows(12))

    line = refusal(capsys, "run", "--resume", str(run))

    # Round 5 is the first after pretraining.
    start = "shared/pretrained.safetensors" if rounds == 8 else "checkpoint-1-shared.safetensors"
    command = f"partita run run/config.toml model.start=run/{start}"
    table = here.resolve() / "t.parquet"
    assert line == (
        f"partita: `{table}` has 36 rows, 12 more than when the run started. Restore the original table to "
        f"resume, or start a new run from this one's model: `{command}`."
    )
    assert main([*shlex.split(command)[1:], "out=new"]) == 0
    new = RunFolder("new")
    assert "`task.data` sha256" in caplog.text
    assert "24 rows; now it is sha256" in caplog.text
    assert new.derived == derived
    assert new.values["made_with"]["task.data"].endswith("36 rows")
    assert main(["run", "--resume", "new"]) == 0


def move_beside(_: Path, run: Path) -> None:
    Path("t.parquet").rename(run / "t.parquet")


def move_to_data(here: Path, _: Path) -> None:
    Path("t.parquet").rename(here / "data/t.parquet")


@pytest.mark.parametrize(
    ("move", "arguments"),
    [
        pytest.param(move_beside, [], marks=pytest.mark.slow),
        pytest.param(move_to_data, [], marks=pytest.mark.slow),
        (move_to_data, ["task.data=data/t.parquet"]),
    ],
)
def test_a_moved_run_resumes_with_its_data(
    move: Callable[[Path, Path], None],
    arguments: list[str],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "mine.toml", "out=whole"]) == 0
    run = interrupted(5)
    (here / "data").mkdir()
    (here / "far/away").mkdir(parents=True)
    moved = run.rename(here / "far/away/run")
    assert "`task.data` = '../t.parquet' is not in" in refusal(capsys, "run", "--resume", str(moved))
    move(here, moved)
    if not arguments:
        monkeypatch.setenv("PARTITA_DATA", str(here / "data"))

    assert main(["run", "--resume", str(moved), *arguments]) == 0

    assert RunFolder(moved).summary == RunFolder("whole").summary
    monkeypatch.delenv("PARTITA_DATA", raising=False)
    if arguments:
        assert main(["run", "--resume", str(moved)]) == 0


def test_a_file_that_is_found_elsewhere_is_checked_too(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = interrupted(2)
    moved = run.rename(here / "moved")
    Path("t.parquet").unlink()
    write(moved / "t.parquet", rows(flip=True))

    assert "has other content than when the run started" in refusal(capsys, "run", "--resume", str(moved))
    other = write(here / "more.parquet", rows(12))
    line = refusal(capsys, "run", "--resume", str(moved), f"task.data={other}")
    assert "`partita run" in line
    assert f"task.data=more.parquet model.start={moved}/checkpoint-1-shared.safetensors`" in line


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("task.vocabulary=t.parquet", "reads no file `task.vocabulary`: leave it out."),
        ("model.start=t.parquet", "reads no file `model.start`: leave it out."),
        ("task.data=none.parquet", "`task.data` = 'none.parquet' is not in "),
        ("precision=bf16", "A resumed run takes its config from its folder: leave out `precision=bf16`."),
        ("accelerator=cuda:99", "CUDA devices"),
        ("task.test=0.5", "A resumed run takes its config from its folder: leave out `task.test=0.5`."),
    ],
)
def test_other_changes_on_resume_are_refused(
    argument: str, words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = interrupted(1)
    before = (run / "config.toml").read_bytes()

    assert words in refusal(capsys, "run", "--resume", str(run), argument)

    assert (run / "config.toml").read_bytes() == before


def test_a_run_is_resumed_on_another_accelerator(here: Path) -> None:
    run = interrupted(1, "accelerator=auto")

    assert main(["run", "--resume", str(run), "accelerator=cpu"]) == 0

    assert 'accelerator = "cpu"' in (run / "config.toml").read_text()


def test_initial_weights_of_a_moved_run_are_found_and_checked(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "mine.toml", "out=first"]) == 0
    shutil.copy("first/shared/pretrained.safetensors", "start.safetensors")
    run = interrupted(2, "model.start=start.safetensors")
    Path("start.safetensors").rename("elsewhere.safetensors")

    assert "`model.start` = '../start.safetensors' is not in" in refusal(capsys, "run", "--resume", str(run))
    line = refusal(capsys, "run", "--resume", str(run), "model.start=first/shared/personalized.safetensors")
    assert "has other content than when the run started" in line
    assert main(["run", "--resume", str(run), "model.start=elsewhere.safetensors"]) == 0


@pytest.mark.slow
def test_a_comparison_is_not_resumed_with_other_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["methods=fedalt", "partitions=output", "seeds=1", "out=compared"]
    assert main(["compare", "mine.toml", *arguments]) == 0
    (cell,) = (here / "compared/cells").glob("fedalt-*/")
    shutil.rmtree(cell)
    write(Path("t.parquet"), rows(flip=True))

    line = refusal(capsys, "compare", "--resume", "compared", "--quiet")

    assert "has other content than when the comparison in `compared` started" in line
    assert "task.data" in RunFolder("compared").values["made_with"]
    write(Path("t.parquet"), rows())
    assert main(["compare", "--resume", "compared"]) == 0


def test_a_run_uses_and_names_the_values_that_its_task_derived(here: Path) -> None:
    assert main(["run", "mine.toml", "out=run"]) == 0

    run = RunFolder("run")
    assert run.derived == tabular(data="t.parquet").derived
    assert run.values["task"]["derived"] == "derived.json"
    # The values of the run count, not those of a table that was changed since.
    write(Path("t.parquet"), rows(12))
    model, other = partita.open("run").model("d1"), tabular(data="t.parquet", derived="run/derived.json")
    inputs, _ = other.devices["d1"]["test"]
    assert other.derived == run.derived != tabular(data="t.parquet").derived
    assert model(inputs).shape == (3, 2)


def test_a_changed_file_of_derived_values_is_noticed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = interrupted(2)
    values = json.loads((run / "derived.json").read_text())
    (run / "derived.json").write_text(json.dumps({**values, "mean": [0.0, 0.0]}))

    assert "derived.json` is damaged: its content is not" in refusal(capsys, "run", "--resume", str(run))


def test_a_run_needs_a_vocabulary_file_only_once(here: Path) -> None:
    texts = [
        {"device": f"d{n % 2}", "split": split, "text": f"word{n} word"}
        for split in ("train", "test")
        for n in range(4)
    ]
    write(Path("texts.parquet"), sorted(texts, key=lambda row: row["device"]))
    Path("words").write_text("word 9\nword3 1\n")
    arguments = ["task.kind=text", "task.data=texts.parquet", "task.vocabulary=words"]
    run = interrupted(2, *arguments)
    Path("words").unlink()

    assert main(["run", "--resume", str(run)]) == 0

    assert RunFolder(run).derived == {"kind": "text", "vocabulary": ["word", "word3"]}
    assert "task.vocabulary" in RunFolder(run).values["made_with"]


def test_a_model_starts_only_with_the_derived_values_that_it_was_trained_with(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "mine.toml", "out=first"]) == 0
    write(Path("other.parquet"), rows(12))
    arguments = [
        "run",
        "mine.toml",
        "task.data=other.parquet",
        "model.start=first/shared/pretrained.safetensors",
    ]

    line = refusal(capsys, *arguments, "out=second")

    file = here.resolve() / "first/derived.json"
    assert line.endswith(f"was trained with another `mean` than this task's: set `task.derived` to `{file}`.")
    assert main([*arguments, "task.derived=first/derived.json", "out=second"]) == 0
    assert RunFolder("second").derived == RunFolder("first").derived


def test_a_run_from_python_keeps_its_derived_values(here: Path) -> None:
    task = tabular(data="t.parquet")
    partition = partita.named_partition(task.model(), "output")
    result = partita.run(task, partition, partita.FedAlt(shared_lr=0.1), rounds=1, out="run")
    write(Path("other.parquet"), rows(12))

    other = tabular(data="other.parquet")
    same = tabular(data="other.parquet", derived="run/derived.json")

    assert RunFolder("run").derived == task.derived == result.derived
    with pytest.raises(ConfigError, match="`task` has another `mean` than the run in `run`"):
        partita.open("run", task=other).model("d0")
    with pytest.raises(ConfigError, match="was started with other values of .*`derived`"):
        partita.run(other, partition, partita.FedAlt(shared_lr=0.1), rounds=1, out="run", resume=True)
    inputs, _ = task.devices["d0"]["test"]
    expected = result.model("d0")(inputs)
    assert torch.equal(partita.open("run", task=same).model("d0")(inputs), expected)


@pytest.mark.slow
@pytest.mark.usefixtures("reports", "no_figures")
def test_the_page_shows_the_digest_of_the_data_and_names_the_metric(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "mine.toml", "task.regression=true", "out=run"]) == 0

    digest = hashlib.sha256(Path("t.parquet").read_bytes()).hexdigest()
    page = Path("run/report.html").read_text()
    assert f"sha256 {digest}, 24 rows" in page
    assert RunFolder("run").values["made_with"]["task.data"] == f"sha256 {digest}, 24 rows"
    assert "test mean absolute error" in page
    assert "Test mean absolute error over 3 devices (lower is better)" in capsys.readouterr().out


@pytest.mark.slow
def test_the_number_of_workers_may_change_on_resume_and_changes_no_bit(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "mine.toml", "out=whole", "workers=1"]) == 0
    run = interrupted(3, "workers=2")

    assert main(["run", "--resume", str(run), "workers=3", "timeout=600"]) == 0

    assert RunFolder(run).values["workers"] == 3
    assert Path(run, "summary.json").read_bytes() == Path("whole/summary.json").read_bytes()
    assert Path(run, "devices.parquet").read_bytes() == Path("whole/devices.parquet").read_bytes()
    for file in Path("whole/personal").iterdir():
        assert (run / "personal" / file.name).read_bytes() == file.read_bytes()
    line = refusal(capsys, "run", "--resume", str(run), "workers=1")
    assert "`timeout` needs worker processes" in line


def table_task(data: str) -> partita.Task:
    """A task of the user's own whose argument has the name of a file of built-in tasks."""
    return tabular(data=data)


@pytest.mark.usefixtures("here")
def test_a_run_keeps_the_arguments_of_the_users_own_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "table_tasks", sys.modules[__name__])
    data = Path("t.parquet").resolve()

    folder = interrupted(2, "task.kind=table_tasks:table_task", f"task.data={data}")

    assert RunFolder(folder).values["task"] == {"kind": "table_tasks:table_task", "data": str(data)}
    assert main(["run", "--resume", str(folder), "--quiet"]) == 0
