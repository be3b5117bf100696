"""Comparisons from Python: those of the command, with a task of one's own."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import partita
from compared import table, tables
from partita import LocalSim, Task
from partita.cli import main
from partita.errors import ConfigError
from partita.runs.folder import RunFolder
from partita.studies import run as runner
from partita.tasks.synthetic import synthetic
from small import same_bits

CONFIG = """
[task]
kind = "synthetic"
devices = 4
examples = 6
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
SETTINGS = {
    "partition.personal": "output",
    "pretrain": {"rounds": 2, "devices_per_round": 3},
    "personalize": {"rounds": 2, "devices_per_round": 3},
    "finetune.epochs": 1,
}
"""The settings in `CONFIG`."""


def task() -> Task:
    """Return the task in `CONFIG`."""
    return synthetic(devices=4, examples=6)


def compared(out: Path, given: Task | None = None, **arguments: Any) -> partita.ComparisonResult:
    own = {"methods": ["fedalt"], "partitions": ["output"], "seeds": 1, "settings": SETTINGS, **arguments}
    return partita.compare(given or task(), out=out, **own)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> partita.ComparisonResult:
    """A comparison without its report, which the tests that need it write."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("partita.report.write.write_report", lambda folder, **_: folder)
        return compared(tmp_path_factory.mktemp("python") / "mine", seeds=2)


@pytest.mark.slow
def test_a_comparison_from_python_has_the_bits_of_the_command(
    mine: partita.ComparisonResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(CONFIG)
    chosen = ["methods=fedalt", "partitions=output", "seeds=2", f"out={tmp_path / 'command'}"]
    assert main(["compare", str(tmp_path / "mine.toml"), *chosen, "--quiet"]) == 0

    assert tables(mine.folder) == tables(tmp_path / "command")
    cells = sorted(path.name for path in (tmp_path / "command/cells").iterdir() if path.is_dir())
    assert [RunFolder(mine.folder / "cells" / cell).summary for cell in cells] == [
        RunFolder(tmp_path / "command/cells" / cell).summary for cell in cells
    ]


@pytest.mark.slow
def test_a_comparison_runs_in_processes_and_is_resumed_with_other_workers(
    mine: partita.ComparisonResult, tmp_path: Path
) -> None:
    own, built = task(), list[int]()

    def build() -> Any:  # A closure: no other process could import it.
        built.append(1)
        return own.model()

    closure = own.with_model(build)

    result = compared(tmp_path / "mine", closure, seeds=2, workers=2)

    assert tables(result.folder) == tables(mine.folder)
    again = compared(tmp_path / "mine", own, seeds=2, resume=True, workers=1)
    assert again.runs.keys() == mine.runs.keys()
    with pytest.raises(ConfigError, match="`workers` is not a setting: use the argument `workers`"):
        compared(tmp_path / "other", settings={**SETTINGS, "workers": 2})


def test_tables_and_rows_by_device_are_those_in_the_folder(mine: partita.ComparisonResult) -> None:
    written = table(mine.folder)
    for row, record in zip(written, mine.tables["methods"].records, strict=True):
        assert row == {name: str(record[name]) for name in row}
    assert set(mine.tables) == {path.stem for path in (mine.folder / "tables").glob("*.csv")}

    own = [row for row in mine.devices.to_pylist() if (row["method"], row["seed"]) == ("fedalt", 2)]
    labels = {"method": "fedalt", "partition": "output", "seed": 2}
    assert own == [{**labels, **row} for row in mine.runs["fedalt", "output", 2].devices.to_pylist()]
    assert {method for method, _, _ in mine.runs} == {"start", "local", "fedavg", "fedalt"}


def test_a_comparison_is_opened_and_builds_its_models_with_its_task(mine: partita.ComparisonResult) -> None:
    cell = ("fedalt", "output", 1)

    opened = partita.open_comparison(mine.folder, task=task())

    assert opened.tables["methods"].rows == mine.tables["methods"].rows
    states = [each.runs[cell].model("device-0000").state_dict() for each in (opened, mine)]
    assert same_bits(*states)
    with pytest.raises(ConfigError, match=r"give its task, `partita.open_comparison\(..., task=...\)`"):
        partita.open_comparison(mine.folder).runs[cell].model("device-0000")
    with pytest.raises(ConfigError, match="holds a comparison: open it with `partita.open_comparison`"):
        partita.open(mine.folder)


@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_models_of_a_comparison_are_built_where_gradients_are_off(
    mine: partita.ComparisonResult, without_gradients: Any
) -> None:
    cell = ("fedalt", "output", 1)

    with without_gradients():
        model = partita.open_comparison(mine.folder, task=task()).runs[cell].model("device-0000")

    assert same_bits(model.state_dict(), mine.runs[cell].model("device-0000").state_dict())


@pytest.mark.slow
def test_an_interrupted_comparison_is_resumed_with_its_task(
    mine: partita.ComparisonResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun = runner.finish, list[Any]()

    def stop_in_the_third(prepared: Any, *arguments: Any) -> Any:
        begun.append(prepared)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return real(prepared, *arguments)

    monkeypatch.setattr(runner, "finish", stop_in_the_third)
    with pytest.raises(KeyboardInterrupt):
        compared(tmp_path / "mine", seeds=2)
    with pytest.raises(FileExistsError, match="give another `out`, or `resume=True`"):
        compared(tmp_path / "mine", seeds=2)
    with pytest.raises(ConfigError, match="started with `compare.seeds` = 2, got 3"):
        compared(tmp_path / "mine", seeds=3, resume=True)
    assert main(["compare", "--resume", str(tmp_path / "mine")]) == 2

    compared(tmp_path / "mine", seeds=2, resume=True)

    assert tables(tmp_path / "mine") == tables(mine.folder)


@pytest.mark.parametrize(
    ("other", "part"),
    [
        ({"devices": 5}, "devices"),
        ({"shared": 4}, "parameters"),
        ({"metrics": ["mae"]}, "metrics"),
    ],
)
@pytest.mark.parametrize("study", ["compare", "tune"])
def test_another_task_is_refused_before_the_first_run_and_the_folder_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], part: str, study: str
) -> None:
    def start(given: Task) -> object:
        if study == "compare":
            return compared(tmp_path / "mine", given, resume=True)
        space = {"finetune.personal_lr": [0.01, 0.1]}
        return partita.tune(given, space, settings=SETTINGS, out=tmp_path / "mine", resume=True)

    monkeypatch.setattr(runner, "finish", killed)
    with pytest.raises(SystemExit):
        start(task())
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(ConfigError, match=f"was started with another task: its `{part}` differs"):
        start(synthetic(**{"devices": 4, "examples": 6, **other}))

    assert sorted(tmp_path.rglob("*")) == before


def killed(*_: object) -> None:
    """End where a run would begin."""
    raise SystemExit


def test_a_finished_comparison_refuses_another_task(mine: partita.ComparisonResult) -> None:
    with pytest.raises(ConfigError, match="was started with another task: its `devices` differs"):
        compared(mine.folder, synthetic(devices=5, examples=6), seeds=2, resume=True)


@pytest.mark.slow
def test_a_refused_resume_forgets_no_failure(tmp_path: Path) -> None:
    diverging = {**SETTINGS, "compare.tune": 1, "compare.settings.fedalt.personalize.shared_lr": 1e37}
    first = compared(tmp_path / "mine", settings=diverging)
    assert list(first.failed) == ["fedalt-output-1"]
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(ConfigError, match="was started with another task"):
        compared(tmp_path / "mine", synthetic(devices=5, examples=6), settings=diverging, resume=True)

    assert partita.open_comparison(tmp_path / "mine").failed == first.failed
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_without_a_comparison_is_not_resumed_and_the_message_is_for_python(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()

    with pytest.raises(ConfigError) as error:
        compared(tmp_path / "mine", resume=True)

    assert str(error.value) == (
        f"`{tmp_path / 'mine'}` holds no comparison to resume: give another `out`, or delete the folder."
    )


@pytest.mark.slow
def test_an_update_of_ones_own_is_compared_by_its_import_path(tmp_path: Path) -> None:
    result = compared(tmp_path / "mine", methods=["fedsim", LocalSim])

    rows = {row["method"]: row["error mean"] for row in result.tables["methods"].records}
    assert rows["FedSim"] == rows["LocalSim"]
    with pytest.raises(ConfigError, match="a class or function at the top level of a module"):
        compared(tmp_path / "other", methods=[lambda: None])


@pytest.mark.slow
def test_an_update_of_a_notebook_is_compared_though_it_is_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = ModuleType("notebook")
    exec("from partita import LocalSim\nclass Mine(LocalSim): pass", vars(notebook))
    monkeypatch.setitem(sys.modules, "notebook", notebook)

    result = compared(tmp_path / "mine", methods=[vars(notebook)["Mine"]])

    assert ("notebook:Mine", "output", 1) in result.runs
    assert result.tables["methods"].records[-1]["method"] == "Mine"


class Failing(LocalSim):
    """An update with an error."""

    def __call__(self, *_: Any) -> list[float]:
        raise RuntimeError("no gradient")


def test_a_run_that_fails_is_logged_and_the_others_are_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "__module__", "failing")
    monkeypatch.setitem(sys.modules, "failing", sys.modules[__name__])

    result = compared(tmp_path / "mine", methods=["fedalt", Failing])

    ((name, reason),) = result.failed.items()
    assert name == "failing.Failing-output-1"
    assert reason.startswith("RuntimeError: no gradient")
    assert f"{name} failed: {reason}" in caplog.messages
    assert {row["method"] for row in result.tables["methods"].records} > {"FedAlt"}
    assert f"ComparisonResult(4 runs in {result.folder}, 1 failed; best " in repr(result)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"task.kind": "digits"}, "`task.kind` is not a setting: use the argument `task`"),
        ({"out": "elsewhere"}, "`out` is not a setting: use the argument `out`"),
        ({"personalize.rouns": 3}, "Did you mean `personalize.rounds`?"),
        ({"personalize.rouns": 3, "personalize.method": "ft_part"}, "Did you mean `personalize.rounds`?"),
        ({"task.size": 3}, "Unknown key `task.size`"),
        ({"personalize.method": LocalSim}, "Settings are numbers, strings"),
    ],
)
def test_a_wrong_setting_is_found_before_training(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        compared(tmp_path / "mine", settings={**SETTINGS, **settings})

    assert words in str(error.value)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"methods": "fedalt"}, "`methods` must be a list, such as `['fedalt']`, got 'fedalt'."),
        ({"methods": LocalSim}, "`methods` must be a list, such as `["),
        ({"partitions": "output"}, "`partitions` must be a list, such as `['output']`, got 'output'."),
    ],
)
def test_one_name_where_a_list_is_needed_is_said(
    arguments: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        compared(tmp_path / "mine", **arguments)

    assert str(error.value).startswith(words)


def test_without_a_folder_a_comparison_takes_the_next_free_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = partita.compare(task(), [], seeds=1, settings=SETTINGS)

    assert result.folder == Path("runs/python-compare-1")
    with pytest.raises(ValueError, match="`resume=True` needs `out`"):
        partita.compare(task(), [], seeds=1, settings=SETTINGS, resume=True)


def test_a_comparison_shows_its_best_rows_on_one_line_and_its_table_in_a_notebook(
    mine: partita.ComparisonResult,
) -> None:
    best = [row for row in mine.tables["methods"].records if row["error is_best"]]

    assert repr(mine).startswith(
        f"ComparisonResult(8 runs in {mine.folder}; best error {best[0]['error mean']:.4f} ±"
    )
    page = mine._repr_html_()
    assert page.count("<tr>") == 1 + len(mine.tables["methods"].rows)
    assert '<td style="text-align: left; padding: 0.1em 0.6em">FedAlt</td>' in page


@pytest.mark.slow
@pytest.mark.usefixtures("reports", "no_figures")
def test_a_report_needs_neither_the_task_nor_a_command_to_reproduce_it(
    mine: partita.ComparisonResult,
) -> None:
    page = mine.report()

    assert page == mine.folder / "report.html"
    assert main(["report", str(mine.folder)]) == 0
    assert "Command to reproduce it" not in page.read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("reports", "no_figures")
def test_a_comparison_from_python_writes_its_report_like_the_command(tmp_path: Path) -> None:
    result = compared(tmp_path / "mine", methods=[])

    own = (tmp_path / "mine/report.html").read_text()
    assert "difference from FedAvg, continued" in own
    assert result.report(baseline="local", columns=["metric", "difference"]).read_text() != own
    (heading,) = {
        line
        for line in (tmp_path / "mine/tables/methods.md").read_text().splitlines()
        if "method" in line[:9]
    }
    assert [part.strip() for part in heading.split("|")][1:-1] == [
        "method",
        "personal part",
        "error",
        "difference from Local only",
    ]
    with pytest.raises(ConfigError, match="`baseline` must be one of the methods compared"):
        result.report(baseline="fedalt")
