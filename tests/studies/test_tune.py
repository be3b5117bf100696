"""Tuning: on validation rows alone, the best of the trials that ran to their end."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from compared import ROUNDS, quiet, values
from marks import slow_but
from partita import Devices, Task
from partita.cli import main
from partita.config.reading import config_of, read_config
from partita.data.examples import examples_of
from partita.durable import locked
from partita.errors import ConfigError, InUse, RunFailed
from partita.params import from_bytes
from partita.runs.folder import RunFolder
from partita.studies import run as runner
from partita.studies.trials import Trial, Tuned, split_arguments, warn_of_ends
from partita.studies.tune import tune
from partita.studies.tuning import Tuning, begin, final_run, reopen, write_tuned
from partita.tasks.validation import hold_out_validation
from small import affine_devices, affine_task
from tables import write

KEY = "finetune.personal_lr"


class Sealed(dict[str, Any]):
    """A device's data whose test rows may not be read."""

    def __getitem__(self, split: str) -> Any:
        assert split != "test", "The test rows were read."
        return super().__getitem__(split)


def sealed() -> Task:
    devices = affine_devices()
    return affine_task(devices=Devices(devices, load=lambda device: Sealed(devices[device])))


def given(method: str = "ft_part", **sections: Any) -> dict[str, Any]:
    """A small run to tune, whose test rows may not be read."""
    whole = values(task={"kind": "test_tuning:sealed"}, partition={"personal": "output"})
    del whole["compare"]
    whole["personalize"] = {**ROUNDS, "method": method}
    for section, changes in sections.items():
        whole[section] = {**whole.get(section, {}), **changes}
    return whole


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this module importable by import path, however tests are imported."""
    monkeypatch.setitem(sys.modules, "test_tuning", sys.modules[__name__])


def tuned(
    tmp_path: Path, search: dict[str, list[Any]], config: dict[str, Any], trials: int = 0
) -> tuple[Tuned, Tuning]:
    tuning = begin({**config, "out": str(tmp_path / "tune")}, Path(), search, trials)
    return tune(tuning, on_progress=quiet), tuning


def test_the_best_on_held_out_rows_is_found_and_test_rows_are_never_read(tmp_path: Path) -> None:
    result, _ = tuned(tmp_path, {KEY: [0.0, 0.05, 1e-9]}, given())

    values_by_rate = {trial.choice[KEY]: trial.value for trial in result.trials}
    assert result.best.choice == {KEY: 0.05}
    assert result.best.value == max(values_by_rate.values())
    assert result.metric == "closeness"
    # A rate of 0 leaves the pretrained model: its closeness on a fifth of the training rows, by hand.
    start = tmp_path / "tune/start/shared/pretrained.safetensors"
    assert values_by_rate[0.0] == pytest.approx(closeness_of(start))


def closeness_of(file: Path) -> float:
    model = from_bytes(file.read_bytes())
    total, count = 0.0, 0
    for splits in hold_out_validation(affine_task(), 0.2).devices.values():
        examples = examples_of(splits["validation"])
        if len(examples):
            inputs, targets = examples.batch_at(torch.arange(len(examples)))
            predicted = inputs @ model["slope.weight"][0] + model["offset"]
            total -= (predicted - targets).abs().mean().item() * len(examples)
            count += len(examples)
    return total / count


@pytest.mark.slow
def test_a_search_has_the_devices_of_the_final_run_and_names_those_that_it_does_not_evaluate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A fifth of 10 training rows is 2, which leaves 8; of 2 training rows it is none.
    rows = [
        {
            "device": device,
            "split": "test" if number < 2 else "train",
            "x": float(number),
            "label": number % 2,
        }
        for device, count in {"few": 4, "many-1": 12, "many-2": 12, "many-3": 12}.items()
        for number in range(count)
    ]
    task = {"kind": "tabular", "data": str(write(tmp_path / "t.parquet", rows)), "min_train_examples": 2}
    config = given(task=task)

    tuned(tmp_path, {KEY: [0.0, 0.05]}, config)

    assert "1 of 4 devices have no validation rows, so the search does not evaluate them: few." in caplog.text
    tuned(tmp_path / "b", {KEY: [0.0]}, given(task={**task, "min_train_examples": 10}))
    trial = RunFolder(tmp_path / "b/tune/trial-0")
    assert {row["device"] for row in trial.devices.to_pylist()} == {"many-1", "many-2", "many-3"}


def test_reading_test_rows_raises(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="The test rows were read."):
        runner.finish(runner.prepare(config_of(given() | {"out": str(tmp_path / "run")}), Path()))


def test_trials_share_one_pretrained_model_unless_a_key_changes_it(tmp_path: Path) -> None:
    tuned(tmp_path / "a", {KEY: [0.01, 0.1]}, given())
    tuned(tmp_path / "b", {"pretrain.shared_lr": [0.01, 0.1]}, given())

    starts = {
        name: {
            (tmp_path / name / "tune" / f"trial-{n}" / "shared/pretrained.safetensors").read_bytes()
            for n in (0, 1)
        }
        for name in "ab"
    }
    assert starts["a"] == {(tmp_path / "a/tune/start/shared/pretrained.safetensors").read_bytes()}
    assert len(starts["b"]) == 2
    assert not (tmp_path / "b/tune/start").exists()


def test_methods_are_searched_without_a_shared_start(tmp_path: Path) -> None:
    # Training alone must not begin from what all have trained.
    tuned(tmp_path, {"personalize.method": ["ft_part", "local"]}, given())

    config = read_config(tmp_path / "tune/trial-1/config.toml")
    assert (config.personalize.method, config.model.start) == ("local", "")


def test_a_diverged_trial_never_wins_even_if_an_earlier_stage_has_a_metric(tmp_path: Path) -> None:
    config = given(task={"kind": "compared:diverging_metric"})

    result, _ = tuned(tmp_path, {KEY: [1000.0, 0.01]}, config)

    assert result.best.choice == {KEY: 0.01}
    assert result.trials[0].value is None
    assert result.trials[0].status.startswith("the run diverged in the stage `finetuned`: the mean loss on")


@pytest.mark.slow
def test_trials_are_evaluated_during_training_only_if_some_may_be_stopped(tmp_path: Path) -> None:
    config = given("fedalt", personalize={"rounds": 10})
    checks: dict[str, int] = {}
    for name, rates in (("few", [0.01, 0.1, 0.2]), ("more", [0.01, 0.1, 0.2, 0.3])):
        tuned(tmp_path / name, {KEY: rates}, config)
        rounds = (tmp_path / name / "tune/trial-0/rounds.jsonl").read_text().splitlines()
        checks[name] = sum(
            line["work"] == "evaluate" and not line["final"] for line in map(json.loads, rounds)
        )

    assert checks == {"few": 0, "more": 4}


def test_a_search_without_a_finished_trial_fails(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="No trial ran to its end: No device replied"):
        tuned(tmp_path, {"personalize.shared_lr": [1e30]}, given("fedalt", personalize={"personal_lr": 1e30}))


def test_the_worst_trials_are_stopped_early_and_never_win(tmp_path: Path) -> None:
    rounds = {**ROUNDS, "rounds": 5, "method": "fedavg"}
    rates = [0.1, 0.08, 0.06, 1e-6, 0.07]

    result, _ = tuned(tmp_path, {"personalize.shared_lr": rates}, given("fedavg", personalize=rounds))

    worst = result.trials[3]
    assert (worst.value, worst.status[:13]) == (None, "stopped after")
    assert result.best.value == max(trial.value for trial in result.trials if trial.value is not None)
    # It ended early: the folder holds no finished run.
    assert not RunFolder(tmp_path / "tune/trial-3").is_finished
    assert [trial.choice["personalize.shared_lr"] for trial in result.trials] == rates


def test_the_lowest_metric_wins_if_lower_is_better(tmp_path: Path) -> None:
    result, _ = tuned(tmp_path, {KEY: [0.05, 0.0]}, given(task={"kind": "compared:worse"}))

    assert result.best.value == min(trial.value for trial in result.trials if trial.value is not None)
    assert result.best.choice == {KEY: 0.05}


@pytest.mark.slow
def test_the_number_of_trials_is_limited_and_none_is_repeated(tmp_path: Path) -> None:
    search = {KEY: [0.01, 0.02, 0.03], "finetune.epochs": [1, 2]}

    result, _ = tuned(tmp_path, search, given(), trials=5)

    assert len(result.trials) == 5
    assert len({tuple(trial.choice.values()) for trial in result.trials}) == 5


FIVE = {"personalize.shared_lr": [0.1, 0.08, 0.06, 1e-6, 0.07]}
"""Five trials, of which the fourth is stopped early."""


def five_trials() -> dict[str, Any]:
    return given("fedavg", personalize={**ROUNDS, "rounds": 5, "method": "fedavg"})


class Interrupts:
    """A watcher that interrupts a search after some rounds, as Ctrl-C does."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def __call__(self, *_: object) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def content_of(folder: Path) -> dict[str, Any]:
    """All files of a search that do not depend on the time, `rounds.jsonl` without seconds."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "rounds.jsonl":
            lines = map(json.loads, path.read_text().splitlines())
            found[name] = [{key: line[key] for key in line if key != "seconds"} for line in lines]
        elif path.is_file() and path.name not in ("commit.json", "costs.json"):
            found[name] = path.read_bytes()
    return found


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tuned, dict[str, Any], int]:
    """The result of a search, the content of its folder and the number of its rounds."""
    sys.modules["test_tuning"] = sys.modules[__name__]
    folder = tmp_path_factory.mktemp("whole") / "tune"
    counted = Interrupts(-1)
    tuning = begin({**five_trials(), "out": str(folder)}, Path(), FIVE, 0)
    result = tune(tuning, on_progress=quiet, on_round=counted)
    write_tuned(result, tuning)
    return result, content_of(folder), -1 - counted.left


@pytest.mark.parametrize("share", slow_but([0.02, 0.1, 0.3, 0.5, 0.7, 0.75, 0.8, 0.99], 0.75))
def test_a_resumed_search_ends_with_the_same_result_and_the_same_bits(
    tmp_path: Path, uninterrupted: tuple[Tuned, dict[str, Any], int], share: float
) -> None:
    whole, content, rounds = uninterrupted
    tuning = begin({**five_trials(), "out": str(tmp_path / "tune")}, Path(), FIVE, 0)
    with pytest.raises(KeyboardInterrupt):
        tune(tuning, on_progress=quiet, on_round=Interrupts(max(1, round(share * rounds))))

    again = reopen(tmp_path / "tune")
    result = tune(again, on_progress=quiet)
    write_tuned(result, again)

    assert result == whole
    assert content_of(tmp_path / "tune") == content


@pytest.mark.slow
def test_a_search_that_is_interrupted_after_every_round_ends_the_same(
    tmp_path: Path, uninterrupted: tuple[Tuned, dict[str, Any], int]
) -> None:
    begin({**five_trials(), "out": str(tmp_path / "tune")}, Path(), FIVE, 0)
    result: Tuned | None = None
    while result is None:
        try:
            result = tune(reopen(tmp_path / "tune"), on_progress=quiet, on_round=Interrupts(7))
        except KeyboardInterrupt:
            continue

    assert result == uninterrupted[0]


@pytest.mark.slow
def test_trials_stop_early_by_patience_and_among_the_worst_and_resume_the_same(tmp_path: Path) -> None:
    # Evaluated every 2 of 10 rounds. The second trial, with a rate of 0, never becomes better than at first;
    # the fourth is among the worst.
    rates = [0.1, 0.0, 0.08, 1e-6, 0.07]
    search = {"personalize.shared_lr": rates}
    config = given("fedavg", personalize={**ROUNDS, "rounds": 10, "patience": 2, "method": "fedavg"})

    whole, tuning = tuned(tmp_path / "whole", search, config)
    begin({**config, "out": str(tmp_path / "tune")}, Path(), search, 0)
    again: Tuned | None = None
    while again is None:
        try:
            again = tune(reopen(tmp_path / "tune"), on_progress=quiet, on_round=Interrupts(9))
        except KeyboardInterrupt:
            continue

    second = RunFolder(tuning.folder / "trial-1")
    assert second.summary["early_stopping"]["personalized"] == {
        "planned_rounds": 10,
        "rounds": 4,
        "best_round": 2,
        "stopped_early": True,
    }
    assert whole.trials[1].value is not None
    assert (whole.trials[3].value, whole.trials[3].status[:13]) == (None, "stopped after")
    assert again == whole
    # The final run stops by its validation rows too.
    final = write_tuned(whole, tuning)
    assert read_config(final).task.options["validation"] == 0.2
    expected = f"The final run, on all training data but 20 % held out for validation: partita run {final}"
    assert final_run(final) == expected


@pytest.mark.slow
def test_a_resumed_search_that_samples_tries_the_same_values(tmp_path: Path) -> None:
    space = {KEY: [0.01, 0.02, 0.03, 0.04], "finetune.epochs": [1, 2, 3]}
    whole, _ = tuned(tmp_path / "whole", space, given(), trials=6)
    tuning = begin({**given(), "out": str(tmp_path / "tune")}, Path(), space, 6)
    with pytest.raises(KeyboardInterrupt):
        tune(tuning, on_progress=quiet, on_round=Interrupts(16))

    assert tune(reopen(tmp_path / "tune"), on_progress=quiet) == whole


@pytest.mark.slow
def test_a_trial_that_failed_is_not_tried_again(tmp_path: Path) -> None:
    config = given("fedalt", personalize={"personal_lr": 1e30, "rounds": 6})
    tuning = begin({**config, "out": str(tmp_path / "tune")}, Path(), {KEY: [0.1, 0.2]}, 0)
    with pytest.raises(RunFailed, match="No trial ran to its end"):
        tune(tuning, on_progress=quiet)
    rounds = (tmp_path / "tune/trial-0/rounds.jsonl").read_bytes()

    with pytest.raises(RunFailed, match="No trial ran to its end"):
        tune(reopen(tmp_path / "tune"), on_progress=quiet)

    assert (tmp_path / "tune/trial-0/rounds.jsonl").read_bytes() == rounds


@pytest.mark.slow
def test_files_that_are_searched_are_found_from_the_folder_of_the_search(tmp_path: Path) -> None:
    tuned(tmp_path / "first", {KEY: [0.1, 0.2]}, given())
    (tmp_path / "conf").mkdir()
    start = (tmp_path / "first/tune/start/shared/pretrained.safetensors").read_bytes()
    for name in ("a", "b"):
        (tmp_path / f"conf/{name}.safetensors").write_bytes(start)
    space = {"model.start": ["a.safetensors", "b.safetensors"]}

    tuning = begin({**given(), "out": str(tmp_path / "tune")}, tmp_path / "conf", space, 0)

    assert tuning.space == {"model.start": ["../conf/a.safetensors", "../conf/b.safetensors"]}
    assert len(tune(tuning, on_progress=quiet).trials) == 2


def test_two_processes_do_not_run_one_search(tmp_path: Path) -> None:
    tuning = begin({**given(), "out": str(tmp_path / "tune")}, Path(), {KEY: [0.1, 0.2]}, 0)

    with locked(tuning.folder), pytest.raises(InUse, match="Another process is writing the search"):
        tune(tuning, on_progress=quiet)


def trial(number: int, **choice: Any) -> Trial:
    return Trial(number=number, choice=choice, value=float(number), status="done")


def test_the_ends_of_what_was_tried_are_numbers_above_0() -> None:
    tried = [trial(0, rate=0.1, depth=2, drop=0, way="a"), trial(1, rate=0.2, depth=1, drop=0.1, way="b")]
    tried += [trial(2, rate=0.3, depth=3, drop=0.2, way="c")]

    assert list(warn_of_ends(tried, tried[0])) == [
        "The best `rate`, 0.1, is the lowest that was tried: a lower one may be better."
    ]
    assert [warning[:17] for warning in warn_of_ends(tried, tried[1])] == ["The best `depth`,"]
    assert [warning[:17] for warning in warn_of_ends(tried, tried[2])] == [
        *("The best `rate`, ", "The best `depth`,", "The best `drop`, ")
    ]
    assert list(warn_of_ends(tried[:1], tried[0])) == []


def test_a_patience_of_1_is_not_the_lowest_that_may_be_better() -> None:
    # 0 is no patience at all.
    ones, twos = ([trial(n, **{"personalize.patience": start + n}) for n in range(3)] for start in (1, 2))

    assert list(warn_of_ends(ones, ones[0])) == []
    assert len(list(warn_of_ends(ones, ones[2]))) == len(list(warn_of_ends(twos, twos[0]))) == 1


def test_trials_within_the_standard_error_of_the_best_are_named(tmp_path: Path) -> None:
    # Rates of 0.6 and 0.8 help different devices; a rate of 0 leaves the pretrained model.
    result, tuning = tuned(tmp_path, {KEY: [0.6, 0.8, 0.0]}, given())

    (warning,) = [each for each in result.warnings if "standard error" in each]
    other = next(each for each in result.trials[:2] if each != result.best)
    own, second, start = (measured(tuning, n) for n in (result.best.number, other.number, 2))
    # One seed: the weighted mean of paired differences, and its standard error over devices.
    gain, error = mean_and_error(own, second)
    assert gain <= error
    assert f"{other.number} ({gain:.4f}, standard error {error:.4f})" in warning
    gain, error = mean_and_error(own, start)
    assert gain > error
    assert "2 (" not in warning


def measured(tuning: Tuning, number: int) -> dict[str, tuple[float, int]]:
    rows = pq.read_table(tuning.folder / f"trial-{number}/devices.parquet").to_pylist()
    own = [row for row in rows if row["stage"] == "finetuned" and row["split"] == "validation"]
    return {row["device"]: (row["metric"], row["weight"]) for row in own if row["metric"] is not None}


def mean_and_error(
    own: dict[str, tuple[float, int]], other: dict[str, tuple[float, int]]
) -> tuple[float, float]:
    total = sum(weight for _, weight in own.values())
    shares = {device: weight / total for device, (_, weight) in own.items()}
    gains = {device: own[device][0] - other[device][0] for device in own}
    mean = sum(shares[device] * gains[device] for device in own)
    squares = sum(share**2 for share in shares.values())
    expected = sum(share**2 * (1 - 2 * share + squares) for share in shares.values())
    spread = sum((shares[device] * (gains[device] - mean)) ** 2 for device in own)
    return mean, (spread * squares / expected) ** 0.5


def test_keys_with_several_values_are_searched_and_others_are_set() -> None:
    plain, search = split_arguments(
        ["seed=2", "a.b=0.1,1", "c=x,y", "partition.personal=['a', 'b']", 'd="p,q"']
    )

    assert plain == ["seed=2", "partition.personal=['a', 'b']", 'd="p,q"']
    assert search == {"a.b": [0.1, 1], "c": ["x", "y"]}


TOML = """
[task]
kind = "compared:plain"
validation = 0.4
[partition]
personal = "output"
[pretrain]
rounds = 1
devices_per_round = 2
[personalize]
method = "ft_part"
[finetune]
epochs = 1
batch_size = 4
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/mine.toml").write_text(TOML)
    return tmp_path


def test_the_command_writes_the_config_of_the_final_run_on_all_training_rows(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "conf/beside.py").write_text("from compared import plain as make")
    (here / "conf/mine.toml").write_text(TOML.replace("compared:plain", "beside:make"))

    assert main(["tune", "conf/mine.toml", f"{KEY}=0.0,0.05", "seed=9"]) == 0

    assert "on all training data: partita run runs/mine-tune-1/tuned.toml" in capsys.readouterr().out
    final = read_config(here / "runs/mine-tune-1/tuned.toml")
    assert (final.finetune.personal_lr, final.seed, final.name) == (0.05, 9, "mine")
    with (here / "runs/mine-tune-1/trials.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [(row[KEY], row["closeness is_best"]) for row in rows] == [("0.0", "0"), ("0.05", "1")]
    # From a folder without the user's code.
    sys.modules.pop("beside", None)
    sys.path[:] = [place for place in sys.path if Path(place).name != "conf"]
    assert main(["run", "runs/mine-tune-1/tuned.toml", "out=final"]) == 0
    asked: dict[str, int] = {}
    for row in pq.read_table(here / "final/devices.parquet").to_pylist():
        assert row["split"] != "validation"
        if row["split"] == "train":
            asked[row["device"]] = row["examples"]
    assert asked == {f"d{n}": 5 + n for n in range(6)}
    summary = json.loads((here / "final/summary.json").read_text())
    assert summary["split"] == "test"


def test_an_interrupted_search_says_how_to_resume_it_and_resumes(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("partita.cli.tune.json_printer", lambda _: Interrupts(4))
        assert main(["tune", "conf/mine.toml", f"{KEY}=0.0,0.05"]) == 130
    assert "Interrupted. Resume with `partita tune --resume runs/mine-tune-1`." in capsys.readouterr().err

    assert main(["tune", "--resume", "runs/mine-tune-1"]) == 0

    printed = capsys.readouterr().out
    assert "partita run runs/mine-tune-1/tuned.toml" in printed
    warning = f"The best `{KEY}`, 0.05, is the highest that was tried: a higher one may be better."
    assert f"Warning: {warning}" in printed
    assert f"Warning: {warning}" in (here / "runs/mine-tune-1/trials.md").read_text()
    assert main(["tune", "--resume", "runs/mine-tune-1", "--json", "--quiet"]) == 0
    assert warning in json.loads(capsys.readouterr().out)["warnings"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["conf"], "`conf` is not the folder of a search: it has no `search.json`."),
        (
            ["conf", "seed=2"],
            "A resumed search takes its config from its folder: give no other argument than `workers=N`.",
        ),
        (["conf", "--trials", "2"], "A resumed search takes its config from its folder"),
    ],
)
def test_a_search_that_cannot_be_resumed_is_an_error_of_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["tune", "--resume", *arguments]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert [path.name for path in here.iterdir()] == ["conf"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([f"{KEY}=0.1,-1"], "[finetune] `personal_lr` must be a finite number, 0 or above, got -1"),
        ([f"{KEY}=0.1,x"], "`finetune.personal_lr` must be a number, got 'x'."),
        (["finetune.lr=0.1,0.2"], "Unknown key `finetune.lr`."),
        (["seed=1,2"], "`seed` cannot be searched: it must be the same in all trials."),
        (["workers=1,2"], "`workers` cannot be searched: it must be the same in all trials."),
        (
            ["personalize.method=finetune", "personalize.rounds=1,2"],
            "`personalize.rounds` cannot be searched: the method `finetune` sets it to 0.",
        ),
        (["evaluate.split=test,validation"], "`evaluate.split` cannot be searched"),
        (["personalize.method=ft_part,fedatl"], "got 'fedatl'. Did you mean `fedalt`?"),
        ([f"{KEY}=0.1"], "There is nothing to search: give a key several values, `key=v1,v2`."),
        ([f"{KEY}=0.1,0.2", "--trials", "-1"], "`trials` must be 0 (every combination) or above, got -1."),
        ([f"{KEY}=0.1,0.2", "out=conf"], "`conf` already exists"),
        ([f"{KEY}=0.1,0.2", "task.validation=1.5"], "`validation` must be between 0 and 1"),
    ],
)
def test_an_error_about_a_value_is_one_line_before_anything_runs(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["tune", "conf/mine.toml", "seed=1", *arguments]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert [path.name for path in here.iterdir()] == ["conf"]


def test_values_other_than_numbers_and_strings_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="The values of `partition.personal` must be numbers or strings, got"
    ):
        begin(given(), Path(), {"partition.personal": [["a"], ["b"]]}, 0)


def test_the_values_of_the_config_are_tried_first(tmp_path: Path) -> None:
    config = given(finetune={"epochs": 1, "personal_lr": 0.05})

    result, _ = tuned(tmp_path, {KEY: [0.5, 0.2, 0.1, 0.05, 0.01]}, config, trials=2)

    assert result.trials[0].choice == {KEY: 0.05}
