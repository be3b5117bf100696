"""`partita compare`, as a user types it."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compared import table, tables
from partita.cli import main
from partita.studies import run as runner

COMMAND = [sys.executable, "-c", "import sys; from partita.cli import main; sys.exit(main())"]

TASK = """
import torch
from torch import nn
from partita import LocalAlt, Task, accuracy

class Net(nn.Module):
    parts = {"output": ("head.*",), "input": ("body.*",), "head": ("head.*",)}
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 3)
        self.head = nn.Linear(3, 2)
    def forward(self, inputs):
        return self.head(torch.relu(self.body(inputs)))

def make(devices=4):
    def data(seed):
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(12, 2, generator=generator)
        return inputs, (inputs.sum(1) > 0).long()
    return Task(
        model=Net,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        metrics={"accuracy": accuracy},
        devices={f"d{n}": {"train": data(n), "test": data(100 + n)} for n in range(devices)},
    )
"""
METHOD = "from partita import LocalAlt\n\nclass my_update(LocalAlt):\n    pass\n"
CONFIG = """
seed = 5
[task]
kind = "my_task:make"
[pretrain]
rounds = 2
devices_per_round = 2
[personalize]
rounds = 2
devices_per_round = 2
[finetune]
epochs = 1
[compare]
methods = ["fedalt", "fedper"]
partitions = ["output"]
seeds = 2
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, with her own modules and config."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("my_task", "my_method"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / "my_task.py").write_text(TASK)
    (tmp_path / "my_method.py").write_text(METHOD)
    (tmp_path / "mine.toml").write_text(CONFIG)
    return tmp_path


def contents(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


def test_a_comparison_writes_tables_in_every_format(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "mine.toml", "methods=fedalt,my_method:my_update", "seeds=1"]) == 0

    captured = capsys.readouterr()
    assert "Comparing in runs/mine-compare-1" in captured.err
    assert "Test accuracy after the last stage (higher is better)" in captured.out
    assert "The comparison is in runs/mine-compare-1, its report is" in captured.out
    folder = here / "runs/mine-compare-1"
    endings = {path.suffix for path in (folder / "tables").iterdir()}
    assert endings == {".csv", ".md", ".tex", ".bib"}
    rows = table(folder)
    assert [row["method"] for row in rows] == [
        *("FedAvg", "Local only", "FedAvg, continued", "FedAlt", "my_update"),
    ]
    # `my_update` is FedAlt under another name.
    numbers = [column for column in rows[0] if column not in ("method", "device-seconds")]
    assert [rows[3][column] for column in numbers] == [rows[4][column] for column in numbers]
    assert r"my\_update & output &" in (folder / "tables/methods.tex").read_text()
    assert r"FedAlt~\cite{pillutla2022} & output" in (folder / "tables/methods.tex").read_text()
    bib = (folder / "tables/references.bib").read_text()
    assert "@inproceedings{pillutla2022," in bib
    assert "@inproceedings{mcmahan2017," in bib


@pytest.mark.slow
def test_own_code_is_found_when_resumed_from_another_folder(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(runner, "finish", interrupt)
        assert main(["compare", "mine.toml", "methods=my_method:my_update", "seeds=1", "out=grid"]) == 130
    message = capsys.readouterr().err.splitlines()[-1]
    assert message == "partita: Interrupted. Resume with `partita compare --resume grid`."
    monkeypatch.chdir("/")
    sys.path[:] = [place for place in sys.path if not place.startswith((str(here), "."))]
    for module in ("my_task", "my_method"):
        sys.modules.pop(module)

    assert main(["compare", "--resume", str(here / "grid")]) == 0

    assert [row["method"] for row in table(here / "grid")][-1] == "my_update"


def test_a_failed_run_is_reported_and_the_command_fails(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = "shared_lr = 1e30, weight_decay = 1e30, batch_size = 1"
    settings = f"compare.settings={{fedper = {{personalize = {{{rates}}}}}}}"

    assert main(["compare", "mine.toml", settings, "seeds=1", "out=grid"]) == 1

    out = capsys.readouterr().out
    assert "fedper-5 failed: No device replied in any round of `personalized`" in out
    assert [row["method"] for row in table(here / "grid")] == [
        *("FedAvg", "Local only", "FedAvg, continued", "FedAlt"),
    ]
    assert main(["compare", "--resume", "grid"]) == 1


def test_a_dry_run_lists_all_runs_and_writes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(here)

    assert main(["compare", "mine.toml", "--dry-run", "partitions=input,output", "tune=2", "workers=3"]) == 0

    out = capsys.readouterr().out
    kinds = ("start", "local", "fedavg", "fedalt-input", "fedalt-output", "fedper")
    assert all(f"  {kind}-{seed} " in out for kind in kinds for seed in (5, 6))
    title = " ".join(out.split("run  ")[0].split())
    assert title.startswith("12 runs: about ")
    assert title.endswith("for 2 trials per method with 3 workers")
    assert contents(here) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["methods=fedatl"], "There is no method 'fedatl'. Known: "),
        (["columns=metric,memry"], "There is no column 'memry'. Known: kept, metric, "),
        (
            ["methods=my_method:absent"],
            "`compare.methods` = 'my_method:absent' does not import",
        ),
        (
            ["partitions=adapter"],
            "FedAlt adapter: [partition] Net names no part 'adapter'. Known: none, output, input",
        ),
        (["seeds=0"], "`seeds` must be at least 1, got 0."),
        (["seeds=x"], "`compare.seeds` must be a whole number, got 'x'."),
        (
            ["baseline=ditto"],
            "`baseline` must be one of the methods compared, local, fedavg, fedalt, fedper, got 'ditto'.",
        ),
        (["out=taken"], "`taken` already exists and holds no run: give another `out`."),
        (["tune=-1"], "`tune` must be 0 (no tuning) or above, got -1."),
        (["tune=2", "task.validation=2.0"], "`validation` must be between 0 and 1"),
        (
            ["compare.settings={fedalt = {finetune = {lr = 1.0}}}"],
            "FedAlt output: Unknown key `finetune.lr`.",
        ),
        (
            ["partition.personal=full", "partition.frozen=rest"],
            "[partition] The partition `full` is the rest: `frozen` must be a list of patterns, got 'rest'.",
        ),
        (
            ["compare.settings.fedalt.personalize.method=fedsim"],
            "`compare.settings.fedalt` cannot set `personalize.method`: use `compare.methods` for it.",
        ),
        (
            ["evaluate.choose=validation", "pretrain.rounds=0", "task.validation=0.3"],
            "`choose` needs a pretrained model",
        ),
        (["pretrain.devices_per_round=9"], "must be at most the number of devices, 4, got 9."),
        (["--dry-run", "methods=fedatl"], "There is no method 'fedatl'. Known: "),
        (["--dry-run", "partitions=adapter"], "FedAlt adapter: [partition] Net names no part 'adapter'."),
        (
            ["--resume", "taken"],
            "A resumed comparison takes its config from its folder: give no other argument than `workers=N`.",
        ),
        (
            ["compare.settings.fedalt.workers=2"],
            "`compare.settings.fedalt` cannot set `workers`: all methods share them.",
        ),
        (["workers=-1"], "`workers` must be 0 (one for each core) or above, got -1."),
    ],
)
def test_a_bad_request_is_one_line_and_writes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    (here / "taken").mkdir()
    (here / "taken/notes.txt").write_text("mine")
    before = contents(here)

    assert main(["compare", "mine.toml", *arguments]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("partita: ")
    assert words in line
    assert contents(here) == before


def test_a_folder_without_a_comparison_is_an_error_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--resume", "nowhere"]) == 2

    error = "partita: `nowhere` is not the folder of a comparison: it has no `comparison.json`.\n"
    assert capsys.readouterr().err == error


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "compare", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE if "workers=3" in arguments else subprocess.DEVNULL,
        start_new_session=True,
    )


def running_in(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, own, *_ = path.read_text().rpartition(")")[2].split()
            found += [int(path.parent.name)] if int(own) == session and state != "Z" else []
    return found


def rounds_in(folder: Path) -> dict[str, int]:
    """The number of rounds that each run has recorded."""
    journals = folder.glob("cells/*/rounds.jsonl")
    return {path.parent.name: path.read_bytes().count(b"\n") for path in journals}


@pytest.mark.slow
def test_a_killed_comparison_resumes_to_the_same_tables(here: Path) -> None:
    assert start("mine.toml", "out=whole").wait() == 0
    rounds = sum(rounds_in(here / "whole").values())
    arguments = ["mine.toml", "out=killed"]

    for moment in (rounds // 5, rounds // 2, rounds - 3):
        process = start(*arguments)
        while sum(rounds_in(here / "killed").values()) < moment:
            assert process.poll() is None, "The comparison ended before it was killed."
            time.sleep(0.002)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        while running_in(process.pid):  # Nothing is left running.
            time.sleep(0.01)
        arguments = ["--resume", "killed"]
    assert start("--resume", "killed").wait() == 0

    assert tables(here / "killed") == tables(here / "whole")


@pytest.mark.slow
def test_ctrl_c_ends_all_cells_at_once_and_the_comparison_is_resumed_with_other_workers(here: Path) -> None:
    process = start("mine.toml", "out=grid", "workers=3")
    while len(rounds_in(here / "grid")) < 3:
        assert process.poll() is None, "The comparison ended before it was interrupted."
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)

    _, error = process.communicate()

    assert process.returncode == 130
    assert error.decode().endswith("partita: Interrupted. Resume with `partita compare --resume grid`.\n")
    assert not running_in(process.pid)
    assert not list((here / "grid/cells").glob("*.failed"))
    assert start("--resume", "grid", "workers=1").wait() == 0


@pytest.mark.slow
def test_processes_that_share_a_comparison_do_every_run_once(here: Path) -> None:
    assert start("mine.toml", "out=whole").wait() == 0
    first = start("mine.toml", "out=shared")
    while not (here / "shared/config.toml").exists():
        time.sleep(0.01)

    others = [start("--resume", "shared") for _ in range(2)]

    assert [process.wait() for process in (first, *others)] == [0, 0, 0]
    assert tables(here / "shared") == tables(here / "whole")
    # Two processes in one cell would have written rounds twice.
    assert rounds_in(here / "shared") == rounds_in(here / "whole")
    assert len(list((here / "shared/cells").glob("*.lock"))) == 10


@pytest.mark.slow
def test_processes_that_share_a_tuned_comparison_tune_every_method_once(here: Path) -> None:
    first = start("mine.toml", "out=shared", "tune=2", "seeds=1")
    while not (here / "shared/config.toml").exists():
        time.sleep(0.01)

    second = start("--resume", "shared")

    assert (first.wait(), second.wait()) == (0, 0)
    found = {path.stem: json.loads(path.read_text()) for path in (here / "shared/tuned").glob("*.json")}
    assert set(found) == {"local", "fedavg", "fedalt-output", "fedper"}
    for kind in found:
        with (here / "shared/tuned" / kind / "trials.csv").open() as lines:
            assert len(list(csv.DictReader(lines))) == 2


BROKEN = """
from pathlib import Path
from partita import LocalAlt

class Broken(LocalAlt):
    def __call__(self, *arguments):
        if not Path("repaired").exists():
            raise ZeroDivisionError("my own mistake")
        return super().__call__(*arguments)
"""
BROKEN_METHODS = "methods=fedalt,my_broken:Broken,fedper"


@pytest.fixture
def broken(here: Path) -> Path:
    (here / "my_broken.py").write_text(BROKEN)
    return here


def test_an_exception_in_own_code_names_device_round_and_line_and_can_be_skipped(
    broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = "personalize.method=my_broken:Broken"
    assert main(["run", "mine.toml", method, "out=run", "--quiet"]) == 1
    errors = capsys.readouterr().err
    assert main(["run", "--resume", "run", "on_error=skip", "--quiet"]) == 1

    last = errors.splitlines()[-1]
    assert last.startswith("partita: ZeroDivisionError: my own mistake. On device 'd")
    assert (
        "in round 0 of `personalized` (my_broken.py, line 8). Resume with `partita run --resume run`" in last
    )
    skipped = "No device replied in any round of `personalized`: ZeroDivisionError: my own mistake (my_broken"
    assert skipped in capsys.readouterr().err


@pytest.mark.slow
def test_an_exception_in_one_method_ends_its_cell_and_a_resumed_comparison_tries_it_again(
    broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "mine.toml", BROKEN_METHODS, "seeds=1", "out=grid"]) == 1

    out = capsys.readouterr().out
    cell = "my_broken.Broken-output-5"
    assert f"{cell} failed: ZeroDivisionError: my own mistake. On device 'd" in out
    assert "in round 0 of `personalized` (my_broken.py, line 8)." in out
    others = ["FedAvg", "Local only", "FedAvg, continued", "FedAlt"]
    assert [row["method"] for row in table(broken / "grid")] == [*others, "FedPer"]
    assert "Traceback" in (broken / f"grid/cells/{cell}.failed").read_text()
    for name in ("methods", "devices", "finetuning"):
        assert f"{cell} failed: ZeroDivisionError" in (broken / f"grid/tables/{name}.md").read_text(), name

    (broken / "repaired").touch()
    assert main(["compare", "--resume", "grid"]) == 0

    assert "failed" not in capsys.readouterr().out
    assert [row["method"] for row in table(broken / "grid")] == [*others, "Broken", "FedPer"]


@pytest.mark.slow
def test_an_exception_while_a_method_is_tuned_fails_its_cells_alone(
    broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "mine.toml", BROKEN_METHODS, "seeds=1", "tune=1", "out=grid"]) == 1

    out = capsys.readouterr().out
    assert "my_broken.Broken-output-5 failed: Tuning: ZeroDivisionError: my own mistake" in out
    (broken / "repaired").touch()
    assert main(["compare", "--resume", "grid"]) == 0
    assert "Broken" in [row["method"] for row in table(broken / "grid")]


@pytest.mark.slow
def test_a_stage_that_failed_is_in_the_notes_of_every_table_and_has_no_star(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Before, every device kept the pretrained model, and Finetune had the number of FedAvg.
    settings = (
        "compare.settings={finetune = {finetune = {personal_lr = 1e30, weight_decay = 1e30, batch_size = 1}}}"
    )

    assert main(["compare", "mine.toml", "methods=fedalt,finetune", settings, "seeds=1", "out=grid"]) == 1

    out = capsys.readouterr().out
    note = "finetune-5: the stage `finetuned` failed and has no result: "
    written = list((here / "grid/tables").glob("*.md"))
    assert out.count(note) == len(written) == 4
    assert all(note in path.read_text() for path in written)
    assert "Finetune" not in [row["method"] for row in table(here / "grid")]
    assert main(["compare", "--resume", "grid"]) == 1


@pytest.mark.slow
def test_a_comparison_carries_the_warnings_of_its_runs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = TASK.replace(
        "    return Task(", "    bad = data(0)[0] * float('nan'), data(0)[1]\n    return Task("
    )
    bad = bad.replace(
        "for n in range(devices)}", "for n in range(devices)} | {'x': {'train': bad, 'test': data(9)}}"
    )
    (here / "my_task.py").write_text(bad)

    assert main(["compare", "mine.toml", "methods=fedalt", "seeds=1", "out=grid"]) == 0

    out = capsys.readouterr().out
    assert "1 device failed in at least one round (x: The loss became nan in step 1.)." in out
    assert "1 device has no test accuracy (x: training failed: The loss became nan in step 1)." in out


def test_values_that_tuning_would_try_are_checked_first(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "my_search.py").write_text(
        "from partita import LocalAlt, NamedMethod\n"
        "METHOD = NamedMethod(title='Mine', update=LocalAlt, search={'personalize.batch_size': [4, 0]})\n"
    )

    assert main(["compare", "mine.toml", "methods=my_search:METHOD", "tune=2", "seeds=1", "out=grid"]) == 2

    error = capsys.readouterr().err
    assert "Mine, tuned with `personalize.batch_size` = 0: [personalize] `batch_size` must be" in error
    assert not (here / "grid").exists()
