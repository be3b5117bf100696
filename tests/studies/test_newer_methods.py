"""The methods that came after the paper, in `compare` and `tune` by name."""

import csv
import json
from pathlib import Path

import pytest

from marks import slow_but
from partita.cli import main
from partita.config.reading import read_config
from partita.methods import registry
from partita.testing.bits import content_of

CONFIG = """
workers = 1
[task]
kind = "partita.testing.small:small_task"
[partition]
adapter_width = "test_newer_methods:width_of"
largest_width = 3
[pretrain]
rounds = 1
devices_per_round = 3
batch_size = 4
[personalize]
rounds = 2
devices_per_round = 3
batch_size = 4
[finetune]
epochs = 1
batch_size = 4
"""
SEARCHED = {
    "apfl": ("personalize.alpha", 0.25, 0.75),
    "fedala": ("personalize.layers", 1, 2),
    "fedrod": ("personalize.personal_lr", 0.01, 0.1),
    "hetlora": ("personalize.shared_lr", 0.01, 0.1),
    "knn_per": ("personalize.memory_weight", 0.1, 0.9),
}
"""For each method, a key of its search and two values."""


def width_of(device: str) -> int:
    return int(device[1:]) % 3 + 1


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    (tmp_path / "mine.toml").write_text(CONFIG)
    return tmp_path


def read(table: Path) -> list[dict[str, str]]:
    with table.open() as lines:
        return list(csv.DictReader(lines))


@pytest.mark.slow
def test_a_comparison_runs_each_by_its_name_with_the_bits_of_a_run(here: Path) -> None:
    given = [f"methods={','.join(SEARCHED)}", "seeds=1", "out=both", "--quiet"]
    assert main(["compare", "mine.toml", *given]) == 0
    assert main(["run", "mine.toml", "personalize.method=fedavg", "out=start", "--quiet"]) == 0

    start = here / "start/shared/pretrained.safetensors"
    rows = {row["method"]: row for row in read(here / "both/tables/methods.csv")}
    for name in SEARCHED:
        given = [f"personalize.method={name}", f"model.start={start}", "pretrain.rounds=0", f"out={name}"]
        assert main(["run", "mine.toml", *given, "--quiet"]) == 0
        summary = json.loads((here / name / "summary.json").read_text())
        (last,) = [s for s in ("finetuned", "personalized") if s in summary["stages"]][:1]
        mean = summary["stages"][last]["weighted_mean"]
        assert content_of(here / f"both/cells/{name}-1") == content_of(here / name)
        assert float(rows[registry.find(name).title]["accuracy mean"]) == pytest.approx(mean, abs=1e-4)


def test_the_search_of_each_has_the_keys_that_are_tried_here() -> None:
    for name, (key, _, _) in SEARCHED.items():
        assert key in [*registry.find(name).rates, *registry.find(name).search]


@pytest.mark.parametrize("name", slow_but(SEARCHED, "hetlora"))
def test_a_search_tries_its_hyperparameters(here: Path, name: str) -> None:
    key, low, high = SEARCHED[name]
    given = [f"personalize.method={name}", f"{key}={low},{high}", "task.validation=0.3", "out=search"]
    assert main(["tune", "mine.toml", *given, "--quiet"]) == 0

    trials = read(here / "search/trials.csv")
    best = [row for row in trials if row["accuracy is_best"] == "1"]
    assert {float(row[key]) for row in trials} == {low, high}
    if name == "knn_per":  # More weight on the memory of few examples predicts otherwise.
        assert trials[0]["accuracy mean"] != trials[1]["accuracy mean"]
    final = read_config(here / "search/tuned.toml").personalize
    value = {**final.options, "shared_lr": final.shared_lr, "personal_lr": final.personal_lr}
    assert value[key.removeprefix("personalize.")] == float(best[0][key])
