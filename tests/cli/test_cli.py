"""The commands, as a user types them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from marks import slow_but
from partita.cli import main
from partita.config.reading import read_config
from sealing import change_config

QUICK = [
    "pretrain.rounds=2",
    "personalize.rounds=2",
    "finetune.epochs=1",
    "model.width=2",
    "evaluate.devices=3",
]

DEEP = "[" * 3000 + "]" * 3000

TASK = """
import torch
from torch import nn
from partita import Task, LocalAlt, accuracy

def make(devices=4, scale=1.0):
    def data(seed):
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(12, 2, generator=generator) * scale
        return inputs, (inputs.sum(1) > 0).long()
    return Task(
        model=lambda: nn.Linear(2, 2),
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        metrics={"accuracy": accuracy},
        devices={f"d{n}": {"train": data(n), "test": data(100 + n)} for n in range(devices)},
    )

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.head = nn.Linear(2, 2)
        self.head.weight = self.body.weight

def wide(width=3):
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))

class Mine(LocalAlt):
    pass
"""

CONFIG = """
seed = 5
[task]
kind = "my_task:make"
devices = 5
[model]
name = "my_task:wide"
width = 4
[partition]
personal = ["2.*"]
[pretrain]
rounds = 2
devices_per_round = 3
[personalize]
method = "my_task:Mine"
optimizer = "torch.optim:RMSprop"
rounds = 2
devices_per_round = 3
shared_lr = 0.01
[finetune]
epochs = 1
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, with her own modules and config."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_task", raising=False)
    (tmp_path / "my_task.py").write_text(TASK)
    (tmp_path / "mine.toml").write_text(CONFIG)
    return tmp_path


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on the error stream."""
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if not line.startswith("Running in ")]
    assert line.startswith("partita: ")
    return line


def test_the_quickstart_ends_with_a_table(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *QUICK]) == 0

    out = capsys.readouterr().out
    assert "Test accuracy over 3 devices" in out
    names = ["FedAvg", "Finetune", "FedAlt", "FedAlt, fine-tuned"]
    table = [line.strip() for line in out.splitlines() if "0." in line]
    assert [name for name, line in zip(names, table, strict=True) if line.startswith(name)] == names
    assert "The run is in runs/quickstart-1" in out
    folder = here / "runs/quickstart-1"
    assert {path.name for path in folder.iterdir()} == {
        *("config.toml", "rounds.jsonl", "devices.parquet", "summary.json", "shared", "personal"),
        *("commit.json", "costs.json", "finetune"),
    }
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary) == {"metric", "direction", "split", "directions", "stages", "failed"}
    assert set(summary["stages"]["finetuned"]) == {
        *("weighted_mean", "mean", "std", "min", "q10", "q50", "q90", "max"),
        *("devices", "failed", "helped", "hurt", "same", "metrics"),
    }
    assert pq.read_table(folder / "devices.parquet").column_names == [
        *("stage", "model", "device", "seen", "split", "examples", "weight", "loss", "metric", "reason"),
    ]


def test_the_finetune_baseline_begins_where_the_run_began(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "out=a", *QUICK])

    outer, inner = (json.loads(Path(p, "summary.json").read_text())["stages"] for p in ("a", "a/finetune"))
    assert inner["pretrained"] == outer["pretrained"]
    assert list(inner) == ["pretrained", "finetuned"]
    pretrained, again = (Path(p, "shared/pretrained.safetensors").read_bytes() for p in ("a", "a/finetune"))
    assert pretrained == again


def test_own_code_runs_by_import_path_and_again_from_the_recorded_config(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "mine.toml"]) == 0
    assert "Mine, fine-tuned" in capsys.readouterr().out

    assert main(["run", "runs/mine-1/config.toml", "out=again"]) == 0

    for name in ("summary.json", "devices.parquet", "shared/personalized.safetensors"):
        assert (here / "runs/mine-1" / name).read_bytes() == (here / "again" / name).read_bytes()


def test_runs_take_the_next_free_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        main(["run", "mine.toml"])

    assert sorted(path.name for path in (here / "runs").iterdir()) == ["mine-1", "mine-2"]


def test_a_config_in_another_folder_finds_the_code_beside_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")

    assert main(["run", "../mine.toml"]) == 0

    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p).resolve() != here])
    monkeypatch.delitem(sys.modules, "my_task")
    assert main(["run", "--resume", "runs/mine-1"]) == 0


def test_changed_code_is_a_warning(here: Path, capsys: pytest.CaptureFixture[str], caplog) -> None:  # noqa: ANN001
    main(["run", "mine.toml"])
    (here / "my_task.py").write_text(TASK + "\n# changed\n")

    main(["run", "runs/mine-1/config.toml"])

    assert "was made with my_task sha256 " in caplog.text


def test_resuming_a_finished_run_prints_it_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "mine.toml", "out=a"])
    first = capsys.readouterr().out

    assert main(["run", "--resume", "a"]) == 0

    assert capsys.readouterr().out == first


def test_describe_counts_every_partition(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "--json", "partition.personal=['stem.*', 'head.*']"]) == 0

    described = json.loads(capsys.readouterr().out)
    partitions = described["partitions"]
    assert list(partitions) == ["none", "input", "output", "head", "adapter", "full", "stem.*, head.*"]
    own = partitions["stem.*, head.*"]
    assert (own["personal"], own["shared"], own["frozen"]) == (810, 37472, 0)
    assert own["up_bytes"] == own["down_bytes"] == 4 * 37472
    assert own["memory_bytes"] == 4 * (3 * 37472 + 2 * 810) + own["backprop_bytes"]
    assert (described["model"], described["devices"], described["start"]) == ("ConvNet", 14, None)


def test_describe_prints_a_table_of_own_models(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "mine.toml"]) == 0

    out = capsys.readouterr().out
    assert "2.*" in out
    assert "22" in out  # 2 * 4 + 4 shared and 4 * 2 + 2 personal parameters


def test_config_prints_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0

    out = capsys.readouterr().out
    for key in ("seed", "kind", "personal", "shared_lr", "server_optimizer", "stateful", "epochs", "every"):
        assert f"\n{key} = " in out


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0

    assert "COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "none.toml"], "Cannot read the config `none.toml`: No such file or directory."),
        (["run", "mien.toml"], "No such file or directory. Did you mean `mine.toml`?"),
        (["run", "broken.toml"], "`broken.toml` is not valid TOML"),
        (
            ["run", "mine.toml", "persnalise.rounds=3"],
            "Unknown key `persnalise`. Did you mean `personalize`?",
        ),
        (["run", "mine.toml", "personalize.shared_lr=nan"], "`shared_lr` must be a finite number"),
        (["run", "mine.toml", "personalize.shared_lr=-1"], "`shared_lr` must be a finite number"),
        (["run", "mine.toml", "personalize.devices_per_round=6"], "number of devices, 5, got 6"),
        (["run", "mine.toml", "partition.personal=['*']"], "leaves no tensor of Sequential shared"),
        (
            ["run", "mine.toml", "model.name=my_task:Tied", "model.width=1"],
            "Unknown key `model.width`. Known keys of Tied: name, start, start_names",
        ),
        (["run", "tied.toml"], "`body.weight` (shared) and `head.weight` (personal) are one tensor"),
        (["run", "mine.toml", "task.kind=my_task:absent"], "does not import: AttributeError"),
        (
            ["run", "mine.toml", "out=taken"],
            "`taken` already exists and holds no run: give another `out`.",
        ),
        (["run", "mine.toml", "out=my_task.py/x"], "Cannot create the run's folder"),
        (["run", "mine.toml", "out=/proc/x/y"], "Cannot create the run's folder"),
        (["run", "--resume", "nowhere"], "`nowhere` holds no run to resume"),
        (["run", "mine.toml", "--resume", "taken"], "leave out `mine.toml`"),
        (["run", "deep.toml"], "`deep.toml` cannot be read: nested too deeply."),
        (["run", "nested.toml"], "`x` has more than 32 lists or tables inside each other."),
        (["run", "dotted.toml"], "`a.a.a.a` has more than 32 lists or tables inside each other."),
        (["run", "digits.toml"], "`digits.toml` cannot be read: a number has too many digits."),
        (["run", "binary.toml"], "Cannot read the config `binary.toml`: 'utf-8' codec can't decode"),
        (["run", "mine.toml", f"seed={DEEP}"], "A value is nested too deeply or too long, got '[[["),
        (["run", "mine.toml", f"{'a.' * 3000}b=1"], "An override must be `section.key=value`"),
        (["run", "mine.toml", f"personalize.shared_lr=1{'0' * 400}"], "must be a number of at most 64 bits"),
        (["run", "mine.toml", f"seed=1{'0' * 5000}"], "A value is nested too deeply or too long, got '100"),
        (["run", "mine.toml", "pretrain.shared_lr=1e39"], "0 or above, and fit in float32, got 1e+39."),
        (["run", "mine.toml", "finetune.personal_lr=1e39"], "0 or above, and fit in float32, got 1e+39."),
        (["run", "mine.toml", "pretrain.server_lr=1e39"], "0 or above, and fit in float32, got 1e+39."),
        (
            ["run", "mine.toml", f"pretrain.batch_size={2**64}"],
            "of at most 64 bits, got 18446744073709551616",
        ),
        (["run", "mine.toml", f"task.devices={2**63}"], "`task.devices` must be a number of at most 64 bits"),
        (["run", "mine.toml", f"model.width={-(2**63) - 1}"], "`model.width` must be a number of at most 64"),
        (["run", "mine.toml", f"pretrain.rounds={2**62}"], "`rounds` must be 0 or above, at most 10,000,000"),
        (["run", "mine.toml", "timeout=1e308"], "(no limit) or above, at most 1,000,000, got 1e+308."),
        (["run", "mine.toml", "workers=2000"], "(one for each core) or above, at most 1000, got 2000."),
        (["run", "a\0\x1b.toml"], r"Cannot read the config `a\x00\x1b.toml`: embedded null byte."),
        (["run", "mine.toml", "other.toml"], "An override must be `section.key=value`, got 'other.toml'."),
        (["describe", "none.toml"], "Cannot read the config"),
        (["describe", "mine.toml", "partition.personal=['x']"], "No tensor of Sequential matches 'x'"),
    ],
)
def test_a_bad_request_is_one_line_and_writes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    (here / "broken.toml").write_text("seed = = 3")
    (here / "deep.toml").write_text(f"x = {DEEP}")
    (here / "nested.toml").write_text(f"x = {'[' * 40}{']' * 40}")
    (here / "dotted.toml").write_text(f"{'a.' * 3000}b = 1")
    (here / "digits.toml").write_text(f"seed = 1{'0' * 5000}")
    (here / "binary.toml").write_bytes(b"\xff\xfe\0")
    (here / "tied.toml").write_text(
        CONFIG.replace('"my_task:wide"\nwidth = 4', '"my_task:Tied"').replace('["2.*"]', '["head.*"]')
    )
    (here / "taken").mkdir()
    (here / "taken/notes.txt").write_text("mine")
    before = sorted(path for path in here.rglob("*") if "__pycache__" not in path.parts)

    assert main(arguments) == 2

    assert words in error_line(capsys)
    assert sorted(path for path in here.rglob("*") if "__pycache__" not in path.parts) == before


@pytest.mark.parametrize("arguments", [["rnu"], ["run", "--resmue", "x"], ["run", "--resume"]])
def test_a_mistyped_command_is_an_error_in_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    error_line(capsys)


def test_a_mistyped_command_is_answered_with_the_most_similar_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rnu"])

    assert "invalid choice 'rnu'. Did you mean `run`? Choose from run, compare," in error_line(capsys)


def test_arguments_that_are_not_text_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Bytes that are no UTF-8 reach Python as lone surrogates, which neither TOML nor JSON can hold.
    with pytest.raises(SystemExit) as caught:
        main(["run", "mine.toml", "name=\udcff"])

    assert caught.value.code == 2
    assert r"The argument 'name=\udcff' is not text in the encoding of this locale." in error_line(capsys)


def test_warnings_are_printed_below_the_table(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "my_task.py").write_text(
        TASK.replace(
            "    return Task(", "    bad = data(0)[0] * float('nan'), data(0)[1]\n    return Task("
        ).replace("for n in range(devices)}", "for n in range(devices)} | {'x': {'train': bad}}")
    )

    assert main(["run", "mine.toml", "pretrain.devices_per_round=6"]) == 0

    out = capsys.readouterr().out
    assert "Warning: 1 device failed in at least one round (x: The loss became nan in step 1.)." in out
    assert "Warning: 1 device has no test accuracy (no test examples)." in out


def test_a_resumed_run_imports_the_code_that_it_began_with(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["run", "mine.toml", "out=a"])
    capsys.readouterr()
    (here / "elsewhere").mkdir()
    (here / "elsewhere/my_task.py").write_text("raise RuntimeError('the wrong one')")
    monkeypatch.chdir(here / "elsewhere")
    monkeypatch.delitem(sys.modules, "my_task")

    assert main(["run", "--resume", "../a"]) == 0


def test_paths_are_valid_if_runs_is_a_link(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "far/away").mkdir(parents=True)
    (here / "runs").symlink_to(here / "far/away")
    main(["run", "mine.toml", "finetune.baseline=true"])

    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not p.startswith(str(here))])
    monkeypatch.delitem(sys.modules, "my_task")
    assert main(["run", "--resume", str(here / "runs/mine-1")]) == 0
    assert main(["describe", str(here / "runs/mine-1/finetune/config.toml")]) == 0


def test_a_folder_with_a_config_alone_is_not_a_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.toml").rename(here / "config.toml")
    (here / "checkpoint-best.pt").write_text("mine")

    assert main(["run", "--resume", "."]) == 2

    assert "no run has written its `config.toml`" in error_line(capsys)
    assert (here / "checkpoint-best.pt").exists()


def test_describe_prints_patterns_unchanged(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "mine.toml", "partition.personal=['[2].*']"]) == 0

    assert "[2].*" in capsys.readouterr().out


def test_a_run_with_an_edited_config_is_not_resumed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "mine.toml", "out=a"])
    config = here / "a/config.toml"
    config.write_text(config.read_text().replace("seed = 5", "seed = 6"))
    capsys.readouterr()

    assert main(["run", "--resume", "a"]) == 2

    assert "`a/config.toml` is damaged: its text is not that of its sha256." in error_line(capsys)


def test_a_run_with_another_seed_is_not_resumed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "mine.toml", "out=a"])
    change_config(here / "a", "seed = 5", "seed = 6")
    capsys.readouterr()

    assert main(["run", "--resume", "a"]) == 2

    assert "started with other values of `seed`" in error_line(capsys)


def test_a_config_printed_by_the_command_can_be_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["config"])
    (here / "whole.toml").write_text(capsys.readouterr().out)

    assert main(["run", "whole.toml", *QUICK[:3], "evaluate.devices=2"]) == 0

    assert (here / "runs/whole-1").is_dir()


def test_continued_fedavg_has_a_title_of_its_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "mine.toml", "personalize.method=fedavg", "personalize.optimizer=sgd"])

    rows = [line.split("  ")[1] for line in capsys.readouterr().out.splitlines() if "0." in line]
    assert rows == ["FedAvg", "FedAvg, continued"]


def test_ctrl_c_names_the_command_to_resume(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("partita.studies.run.finish", interrupt)

    assert main(["run", "mine.toml"]) == 130

    assert error_line(capsys) == "partita: Interrupted. Resume with `partita run --resume runs/mine-1`."


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_folder_without_permission_is_an_error_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here.chmod(0o500)

    assert main(["run", "mine.toml"]) == 2

    assert "Permission denied" in error_line(capsys)


def test_a_run_without_a_reply_fails(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "mine.toml", "task.scale=nan"]) == 1

    assert "No device replied in any round of `pretrained`" in capsys.readouterr().err


def test_a_run_in_which_too_many_devices_failed_says_how_to_resume(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strict = ["task.scale=nan", "max_failed=0"]
    assert main(["run", "mine.toml", *strict, "--quiet"]) == 1
    first = error_line(capsys)
    assert main(["run", "--resume", "runs/mine-1", "max_failed=1", "--quiet"]) == 1

    assert "devices failed in round 0 of `pretrained`: more than the share `max_failed` = 0." in first
    assert first.endswith("Resume with `partita run --resume runs/mine-1`.")
    assert "No device replied in any round of `pretrained`" in capsys.readouterr().err


def test_the_installed_command_runs() -> None:
    command = Path(sys.executable).parent / "partita"

    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)

    assert done.stdout == "partita 0.2.0\n"


@pytest.mark.slow
def test_the_installed_command_fails_in_one_line(here: Path) -> None:
    command = Path(sys.executable).parent / "partita"

    failed = subprocess.run([command, "run", "seed=x"], capture_output=True, text=True, check=False, cwd=here)

    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == "partita: `seed` must be a whole number, got 'x'.\n"


DIVERGES = [f"finetune.{text}" for text in ("personal_lr=1e30", "weight_decay=1e30", "batch_size=1")]
"""After one step the personal part is infinite on every device, and the second step fails."""


def test_a_run_whose_stage_failed_says_so_and_has_no_number_for_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "mine.toml", *DIVERGES, "finetune.baseline=true", "out=a"]) == 1

    out = capsys.readouterr().out
    failed = (
        "the stage `finetuned` failed and has no result: 5 of 5 devices failed in it (d0: The loss became nan"
    )
    assert f"Warning: {failed}" in out
    assert f"Warning: In the Finetune baseline: {failed}" in out
    rows = {line.split("  ")[1].strip(): line for line in out.splitlines() if line.startswith("  ")}
    assert " failed" in rows["model"]
    for title in ("Finetune", "Mine, fine-tuned"):
        assert rows[title].split()[-1] == "5", title
        assert "0." not in rows[title], title
    assert "0." in rows["Mine"]
    summary = json.loads((here / "a/summary.json").read_text())
    assert (list(summary["stages"]), list(summary["failed"])) == (
        ["pretrained", "personalized"],
        ["finetuned"],
    )
    assert main(["run", "--resume", "a"]) == 1


def test_a_wrong_rate_of_the_baseline_is_refused_before_training(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "mine.toml", "finetune.baseline=true", "finetune.baseline_lr=-1", "out=a"]) == 2

    assert "`finetune.baseline_lr` must be a finite number, 0 or above, got -1.0." in error_line(capsys)
    assert not (here / "a").exists()


@pytest.mark.parametrize("form", slow_but(["quadratic", "mixture"], "mixture"))
def test_tune_searches_on_synthetic_tasks(here: Path, form: str) -> None:
    pytest.importorskip("optuna")
    (here / "syn.toml").write_text(
        f"[task]\nkind = 'synthetic'\nform = '{form}'\ndevices = 3\nexamples = 6\n"
    )
    settings = ["pretrain.rounds=1", "personalize.rounds=1", "finetune.epochs=1", "workers=1"]
    settings += ["pretrain.devices_per_round=3", "personalize.devices_per_round=3"]

    assert main(["tune", "syn.toml", "finetune.personal_lr=0.1,0.0", *settings, "out=t", "--quiet"]) == 0

    assert read_config(here / "t/tuned.toml").finetune.personal_lr in (0.1, 0.0)


def test_tune_gives_up_a_trial_whose_devices_failed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")

    assert main(["tune", "mine.toml", "finetune.weight_decay=1e30,0.0", *DIVERGES[2:], "out=tuned"]) == 0

    out = capsys.readouterr().out
    assert "the stage `finetuned` failed and has no result: 5 of 5 devices failed in it (d0: The loss" in out
    assert read_config(here / "tuned/tuned.toml").finetune.weight_decay == 0.0


@pytest.mark.usefixtures("reports")
def test_errors_show_hidden_characters_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["report", "no\x1b[2Jsuch"]) == 2

    assert capsys.readouterr().err.startswith(r"partita: `no\x1b[2Jsuch` is not the folder")
