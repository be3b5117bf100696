"""Progress of commands: plain lines, JSON, watchers and TensorBoard."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from boards import expected, read, same
from partita.cli import main
from partita.training.pipeline import Pipeline

DOCS = Path(__file__).parents[2] / "docs/how-to/watch-a-run.md"
CONFIG = """
[task]
kind = "compared:plain"
[partition]
personal = "output"
[pretrain]
rounds = 2
devices_per_round = 3
[personalize]
rounds = 2
devices_per_round = 3
[finetune]
epochs = 1
"""
ROUNDS = 8
"""Rounds of this run: two, an evaluation, two, an evaluation, fine-tuning, an evaluation."""
WATCHERS = """
import json

def make(folder, config):
    file = folder / "watchers" / "calls.jsonl"
    file.parent.mkdir(exist_ok=True)
    def watch(line, done, total):
        with file.open("a") as calls:
            calls.write(json.dumps([line, done, total, config["personalize"]["rounds"]]) + "\\n")
    return watch

def broken(folder, config):
    (folder / "seen").write_text("A watcher should not write here, but the run must not fail.")
    def watch(line, done, total):
        if done == 3:
            raise RuntimeError("no server")
    return watch
"""


class Stop(Exception):
    pass


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, with her own config and watchers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_watchers", raising=False)
    (tmp_path / "my_watchers.py").write_text(WATCHERS)
    (tmp_path / "mine.toml").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Stop runs after a number of committed rounds, as a kill would: watchers miss the last one."""
    real = Pipeline.run

    def stopping(moment: int | None) -> None:
        def run(pipeline: Any, watch: Any) -> Any:
            if moment == 0:
                raise Stop

            def watch_until(line: Any, done: int, total: int) -> None:
                if done == moment:
                    raise Stop
                watch(line, done, total)

            return real(pipeline, watch_until)

        monkeypatch.setattr(Pipeline, "run", run)

    return stopping


def rounds_in(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "rounds.jsonl").read_text().splitlines()]


def test_progress_is_plain_lines_if_the_error_stream_is_piped(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "mine.toml", "out=a"])

    first, second, *_, last, after = capsys.readouterr().err.splitlines()
    assert (first, after) == ("Running in a", "Writing the report")
    assert re.fullmatch(
        r"1/8 pretraining, round 1 of 2, loss \d\.\d{4}, \S+ rounds/s, \d:\d\d:\d\d left", second
    )
    assert re.fullmatch(
        r"8/8 evaluating the finetuned model, round 1 of 1, loss \d\.\d{4}, \w+ -?\d\.\d{4}, \d of 6 hurt, "
        r"\S+ rounds/s",
        last,
    )


@pytest.mark.parametrize(
    "command",
    [["run", "mine.toml", "out=a"], ["tune", "mine.toml", "finetune.personal_lr=0.01,0.02", "out=a"]],
    ids=lambda command: command[0],
)
def test_quiet_prints_the_result_only(
    here: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert main([*command, "--quiet"]) == 0

    captured = capsys.readouterr()
    assert captured.err == ""
    assert "closeness" in captured.out


def test_import_can_be_quiet(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "nonesuch", "a", "b.parquet", "--quiet"]) == 2

    assert capsys.readouterr().err.startswith("partita: The kind of `partita import` must be one of")


def test_json_is_a_line_for_every_round_and_one_for_the_result(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "mine.toml", "--json", "out=a", "finetune.baseline=true"]) == 0

    captured = capsys.readouterr()
    assert captured.err == "Running in a\nWriting the report\n"
    *rounds, outcome = map(json.loads, captured.out.splitlines())
    own, baseline = rounds[:ROUNDS], rounds[ROUNDS:]
    assert [(line["done"], line["total"]) for line in own] == [
        (done, ROUNDS) for done in range(1, ROUNDS + 1)
    ]
    assert {line.pop("run") for line in baseline} == {"finetune"}
    for printed, folder in ((own, "a"), (baseline, "a/finetune")):
        written = rounds_in(folder)
        assert len(printed) == len(written)
        assert all(line.items() >= wrote.items() for line, wrote in zip(printed, written, strict=True))
    assert (own[0]["rounds"], own[5]["stage"], own[5]["final"]) == (2, "personalized", True)
    assert own[5]["helped"] + own[5]["hurt"] + own[5]["same"] == 6
    assert outcome["folder"] == "a"
    assert outcome["summary"] == json.loads(Path("a/summary.json").read_text())
    assert list(outcome["models"]) == ["FedAvg", "Finetune", "FedAlt", "FedAlt, fine-tuned"]
    assert outcome["warnings"] == []


def test_quiet_json_is_the_result_only(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "mine.toml", "--json", "--quiet", "out=a"])

    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out)["folder"] == "a"


def test_json_of_a_comparison_names_the_cell_of_every_round(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "mine.toml", "methods=fedalt", "partitions=output", "seeds=1", "out=a"]
    assert main([*command, "--json"]) == 0

    captured = capsys.readouterr()
    assert captured.err == "Comparing in a\nWriting the report\n"
    *rounds, outcome = map(json.loads, captured.out.splitlines())
    cells = {path.name for path in Path("a/cells").iterdir() if path.is_dir()}
    assert {line["run"] for line in rounds} == {f"cells/{cell}" for cell in cells}
    assert len(rounds) == sum(len(rounds_in(f"a/cells/{cell}")) for cell in cells)
    assert (outcome["folder"], outcome["failed"]) == ("a", {})
    methods = outcome["tables"]["methods"]["rows"]
    assert {row["method"]["text"] for row in methods} > {"FedAlt", "Local only"}
    assert all(isinstance(row["closeness"]["mean"], float) for row in methods)

    assert main(["compare", "--resume", "a", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "The comparison is in a, its report is" in captured.out


def test_json_of_tuning_names_the_trial_of_every_round(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "mine.toml", "finetune.personal_lr=0.01,0.02", "out=a", "--json"]) == 0

    *rounds, outcome = map(json.loads, capsys.readouterr().out.splitlines())
    assert list(dict.fromkeys(line["run"] for line in rounds)) == ["start", "trial-0", "trial-1"]
    assert [trial["choice"] for trial in outcome["trials"]] == [
        {"finetune.personal_lr": 0.01},
        {"finetune.personal_lr": 0.02},
    ]
    assert outcome["best"] in outcome["trials"]
    assert (outcome["config"], outcome["metric"]) == ("a/tuned.toml", "closeness")


def calls_in(folder: str) -> list[Any]:
    return [json.loads(line) for line in Path(folder, "watchers/calls.jsonl").read_text().splitlines()]


def test_watchers_of_a_config_are_called_once_for_every_round(
    here: Path, stop_after: Callable[[int | None], None], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["report.watchers=['my_watchers:make']", "report.tensorboard=true"]
    stop_after(0)
    with pytest.raises(Stop):  # By then the watcher has created its folder.
        main(["run", "mine.toml", "out=a", *settings])
    for moment in (4, None):
        stop_after(moment)
        with pytest.raises(Stop) if moment else nullcontext():
            main(["run", "--resume", "a"])

    calls = calls_in("a")
    # Round 4 was committed without a call of the watcher, as in a kill between the two.
    assert [done for _, done, _, _ in calls] == [1, 2, 3, 5, 6, 7, 8]
    assert {(total, rounds) for _, _, total, rounds in calls} == {(ROUNDS, 2)}
    assert same(read(Path("a")), expected(Path("a")))
    assert "my_watchers = " in Path("a/config.toml").read_text()


def test_a_watcher_changes_no_bit_and_one_that_raises_is_not_called_again(
    here: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    watchers = "report.watchers=['my_watchers:broken', 'my_watchers:make']"
    assert main(["run", "mine.toml", "out=watched", watchers]) == 0
    assert main(["run", "mine.toml", "out=plain"]) == 0

    (warning,) = [text for text in caplog.messages if "watcher" in text]
    assert warning == (
        "The watcher `my_watchers:broken` failed and is not called again: "
        "RuntimeError: no server (my_watchers.py, line 16)."
    )
    assert len(calls_in("watched")) == ROUNDS
    for name in ("summary.json", "devices.parquet", "shared/personalized.safetensors"):
        assert Path("watched", name).read_bytes() == Path("plain", name).read_bytes()
    watched, plain = (
        [{key: value for key, value in line.items() if key != "seconds"} for line in rounds_in(folder)]
        for folder in ("watched", "plain")
    )
    assert watched == plain


def test_a_wrong_watcher_is_one_line_and_writes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "mine.toml", "out=a", "report.watchers=['my_watchers:absent']"]) == 2

    assert "partita: `report.watchers` = 'my_watchers:absent' does not import" in capsys.readouterr().err
    assert not Path("a").exists()


def test_a_run_resumes_with_other_watchers(
    here: Path,
    stop_after: Callable[[int | None], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop_after(4)
    with pytest.raises(Stop):
        main(["run", "mine.toml", "out=a"])
    stop_after(6)
    with pytest.raises(Stop):
        main(["run", "--resume", "a", "report.watchers=['my_watchers:make']", "report.tensorboard=true"])
    stop_after(None)
    monkeypatch.chdir("/")  # The recorded config has the folder of the watchers' code.
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p).is_absolute() and Path(p) != here])
    monkeypatch.delitem(sys.modules, "my_watchers")
    assert main(["run", "--resume", str(here / "a")]) == 0

    assert [done for _, done, _, _ in calls_in(str(here / "a"))] == [5, 7, 8]
    # TensorBoard has all rounds, also those before it was enabled.
    assert same(read(here / "a"), expected(here / "a"))
    assert main(["run", "--resume", str(here / "a"), "seed=3"]) == 2
    assert "leave out `seed=3`" in capsys.readouterr().err


def examples(word: str) -> str:
    """The code block of the docs that contains a word."""
    blocks = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if word in block]
    return block


def test_the_reader_in_the_docs_works(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def in_this_process(command: list[str], *, stdout: int, text: bool) -> Iterator[Any]:
        assert main(command[1:]) == 0
        yield SimpleNamespace(stdout=capsys.readouterr().out.splitlines())

    monkeypatch.setattr("subprocess.Popen", in_this_process)

    exec(examples("subprocess"), {})

    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("1 of 8: pretrained, loss ")
    mean = json.loads(Path("runs/mine-1/summary.json").read_text())["stages"]["finetuned"]["weighted_mean"]
    assert last == f"runs/mine-1 {mean}"
