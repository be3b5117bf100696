"""An own method by import path, in every command, like a built-in name."""

import csv
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partita.cli import main
from partita.config.reading import config_of
from partita.errors import ConfigError
from partita.methods import registry
from partita.report.models import evaluated_models
from partita.runs.folder import RunFolder
from partita.studies.comparison import reopen
from partita.studies.results import collect
from partita.studies.search import space_of
from partita.studies.variants import title_of

OWN = '''
from dataclasses import dataclass
import torch
import partita

@dataclass(frozen=True, kw_only=True)
class LocalMomentum:
    """Alternating updates; the personal part goes on in the direction of the device's last visit."""

    personal: partita.Steps
    shared: partita.Steps
    carried: partita.Carried
    decay: float = 0.5
    """Share of the last visit's direction that is kept."""
    rounds_before: int = 0

    @staticmethod
    def keeps(shared, personal):
        return {f"momentum/{name}": torch.zeros_like(tensor) for name, tensor in personal.items()}

    def __call__(self, model, partition, batches, loss):
        before = {name: tensor.detach().clone() for name, tensor in partition.of(model).personal.items()}
        losses = partita.descend({"personal": self.personal}, model, partition, batches, loss)
        with torch.no_grad():
            for name, tensor in partition.of(model).personal.items():
                direction = self.carried.kept[f"momentum/{name}"]
                direction.mul_(self.decay).add_(tensor - before[name])
                tensor.copy_(before[name] + direction)
        return losses + partita.descend({"shared": self.shared}, model, partition, batches, loss)

METHOD = partita.NamedMethod(
    title="Momentum",
    update=LocalMomentum,
    citation=partita.Citation(key="me2026", title="Momentum of My Own", authors="Me", year=2026),
    suggested={"personalize.personal_epochs": 2},
    search={"personalize.decay": (0.0, 0.5, 0.9)},
)
WHOLE = partita.NamedMethod(
    title="Whole", update=LocalMomentum, personal="output", fixed={"personalize.weights": "equal"}
)
CLASHING = partita.NamedMethod(title="Clashing", update=lambda *, personal, shared, momentum=0.5: None)
'''
CONFIG = """
name = "own"
[task]
kind = "compared:plain"
[partition]
personal = "output"
[pretrain]
rounds = 1
devices_per_round = 3
[personalize]
rounds = 2
devices_per_round = 6
[finetune]
epochs = 0
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder: a config in it, and beside the config a module with a method."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/own_methods.py").write_text(OWN)
    (tmp_path / "conf/own.toml").write_text(CONFIG)
    sys.modules.pop("own_methods", None)
    yield tmp_path
    sys.modules.pop("own_methods", None)


def run(*arguments: str) -> int:
    return main([arguments[0], "conf/own.toml", *arguments[1:]])


def written(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "config.toml").read_text())


def test_a_run_has_its_title_its_settings_and_its_state(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "personalize.method=own_methods:METHOD", "out=a") == 0

    assert "Momentum" in capsys.readouterr().out
    personalize = written(here / "a")["personalize"]
    assert (personalize["personal_epochs"], personalize["decay"], personalize["rounds_before"]) == (2, 0.5, 0)
    files = list((here / "a/personal").glob("*.safetensors"))
    assert files
    assert all(b"momentum/offset" in file.read_bytes() for file in files)


def test_a_hyperparameter_changes_the_result_and_is_in_the_config(here: Path) -> None:
    method = "personalize.method=own_methods:METHOD"
    assert run("run", method, "out=a") == 0
    assert run("run", method, "personalize.decay=0.0", "out=b") == 0
    assert main(["run", "b/config.toml", "out=c"]) == 0

    shared = [(here / name / "shared/personalized.safetensors").read_bytes() for name in "abc"]
    assert written(here / "b")["personalize"]["decay"] == 0.0
    assert shared[0] != shared[1] == shared[2]


def test_settings_that_an_own_method_fixes_replace_the_configs(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    method = "personalize.method=own_methods:WHOLE"
    assert run("run", method, "personalize.weights=examples", "partition.personal=none", "out=a") == 0

    assert written(here / "a")["personalize"]["weights"] == "equal"
    assert written(here / "a")["partition"]["personal"] == "output"
    assert (
        "The method `own_methods:WHOLE` sets `partition.personal` = 'output' instead of 'none'" in caplog.text
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["personalize.deacy=0.1"], "Unknown key `personalize.deacy`. Did you mean `personalize.decay`?"),
        (["personalize.decay=much"], "`personalize.decay` must be a number, got 'much'."),
        (["personalize.rounds_before=0.5"], "`personalize.rounds_before` must be a whole number, got 0.5."),
        (
            ["personalize.method=own_methods:CLASHING"],
            "`personalize.method` = 'own_methods:CLASHING' has an argument `momentum`",
        ),
        (["personalize.method=own_methods:NONE"], "= 'own_methods:NONE' does not import: AttributeError"),
        (["personalize.method=fedalt", "personalize.decay=0.1"], "Unknown key `personalize.decay`."),
    ],
)
def test_a_bad_hyperparameter_is_a_one_line_error(
    here: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "personalize.method=own_methods:METHOD", *arguments) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["personalize.deacy=0.1"],
            "Unknown key `personalize.deacy`. Did you mean `personalize.decay`? Known keys: method, ",
        ),
        (
            ["personalize.decay=0.1"],
            "`personalize.decay` is a hyperparameter of `own_methods:METHOD`, not of the config's method, "
            '`fedsim`: set it in `[compare.settings."own_methods:METHOD"]`.',
        ),
    ],
)
def test_a_hyperparameter_that_no_cell_would_use_is_refused_in_a_comparison(
    here: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["methods=fedalt,own_methods:METHOD", "personalize.method=fedsim"]
    assert run("compare", *own, *arguments) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"partita: {words}")
    assert not (here / "runs").exists()


def test_describe_counts_kept_tensors(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def disk_bytes(method: str) -> int:
        assert run("describe", f"personalize.method={method}", "--json") == 0
        return json.loads(capsys.readouterr().out)["partitions"]["output"]["disk_bytes"]

    assert disk_bytes("own_methods:METHOD") > disk_bytes("fedalt")


@pytest.mark.slow
def test_tune_searches_its_hyperparameters(here: Path) -> None:
    method = "personalize.method=own_methods:METHOD"
    assert run("tune", method, "personalize.decay=0.0,0.9", "out=tuned") == 0

    best = tomllib.loads((here / "tuned/tuned.toml").read_text())["personalize"]
    assert best["decay"] in (0.0, 0.9)
    assert main(["run", "tuned/tuned.toml", "out=final"]) == 0
    assert written(here / "final")["personalize"]["decay"] == best["decay"]


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "tables" / f"{name}.csv").open() as lines:
        return list(csv.DictReader(lines))


@pytest.mark.slow
def test_compare_has_a_row_and_a_paper_for_it_with_and_without_a_state(here: Path) -> None:
    # The config's own method and its hyperparameter do not disturb the other methods.
    text = CONFIG.replace("[personalize]", '[personalize]\nmethod = "own_methods:METHOD"\ndecay = 0.9')
    (here / "conf/own.toml").write_text(text)
    methods = "methods=fedalt,own_methods:METHOD,own_methods:METHOD-stateless,own_methods:LocalMomentum"

    assert run("compare", methods, "partitions=output", "seeds=1", "out=grid") == 0

    titles = [row["method"] for row in table(here / "grid", "methods")]
    assert titles[-4:] == ["FedAlt", "Momentum", "Momentum, stateless", "LocalMomentum"]
    assert "@misc{me2026," in (here / "grid/tables/references.bib").read_text()
    cells = {path.name: written(path) for path in (here / "grid/cells").iterdir() if path.is_dir()}
    decays = {name: cell["personalize"].get("decay") for name, cell in cells.items()}
    assert decays["own_methods.METHOD-output-1"] == decays["own_methods.METHOD-stateless-output-1"] == 0.9
    assert decays["own_methods.LocalMomentum-output-1"] == 0.5
    assert decays["fedalt-output-1"] is None
    kept = {name: len(list((here / "grid/cells" / name / "personal").iterdir())) for name in cells}
    assert kept["own_methods.METHOD-output-1"] > 0 == kept["own_methods.METHOD-stateless-output-1"]


@pytest.mark.slow
def test_compare_tunes_the_values_that_it_declares(here: Path) -> None:
    methods = "methods=own_methods:METHOD"

    assert run("compare", methods, "partitions=output", "seeds=1", "tune=2", "out=grid") == 0

    keys = {row["key"] for row in table(here / "grid", "tuned") if row["method"] == "Momentum"}
    assert "personalize.decay" in keys


@pytest.mark.slow
def test_a_report_has_its_title_without_its_code(here: Path) -> None:
    method = "own_methods:METHOD"
    assert run("run", f"personalize.method={method}", "out=a") == 0
    assert run("compare", f"methods={method}", "partitions=output", "seeds=1", "out=grid") == 0
    (here / "conf/own_methods.py").unlink()
    sys.modules.pop("own_methods")

    assert [model.title for model in evaluated_models(RunFolder(here / "a"))] == ["FedAvg", "Momentum"]
    assert collect(reopen(here / "grid"), {}).titles[method] == "Momentum"


def test_missing_own_code_is_a_one_line_error_on_resume(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "personalize.method=own_methods:METHOD", "out=a") == 0
    (here / "conf/own_methods.py").unlink()
    sys.modules.pop("own_methods")
    capsys.readouterr()

    assert main(["run", "--resume", "a"]) == 2

    assert "'own_methods:METHOD' does not import" in capsys.readouterr().err


def test_the_values_of_a_search_are_those_that_a_method_declares(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(here / "conf")

    space = space_of(config_of({"personalize": {"method": "own_methods:METHOD"}}))

    assert space["personalize.decay"] == (0.0, 0.5, 0.9)
    assert title_of("own_methods:METHOD-stateless") == "Momentum, stateless"
    assert list(registry.find("own_methods:METHOD").hyperparameters) == ["decay", "rounds_before"]
    with pytest.raises(ConfigError, match="`personalize.decay`"):
        config_of({"personalize": {"method": "own_methods:METHOD", "decay": [1]}})
