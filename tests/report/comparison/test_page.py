"""The page of a comparison: means and ranges over seeds computed by hand, and missing runs."""

import json
import re
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from compared import done, values
from partita.cli import main
from partita.report.comparison.page import comparison_page
from partita.report.page import Page
from partita.report.write import write_report
from partita.studies.comparison import reopen
from report.run.test_page import ParsedPage, data_sets
from sealing import change_commit

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("reports")]


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages") / "grid"
    done(folder, values("finetune", "fedalt"))
    return folder


@pytest.fixture(scope="module")
def comparison(grid: Path) -> Path:
    """The comparison with its report, without figures."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("partita.report.write.write_figures", lambda charts, data, folder: None)
        write_report(grid)
    return grid


def metrics(folder: Path, cell: str, stage: str) -> dict[str, float]:
    rows = pq.read_table(folder / "cells" / cell / "devices.parquet").to_pylist()
    return {r["device"]: r["metric"] for r in rows if (r["stage"], r["split"]) == (stage, "test")}


def test_costs_of_a_part_are_those_of_describe(comparison: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", str(comparison / "config.toml"), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)["partitions"]["output"]

    (head, row) = (comparison / "tables/costs.csv").read_text().splitlines()
    numbers = dict(zip(head.split(","), row.split(","), strict=True))
    assert numbers["personal part"] == "output"
    assert int(numbers["personal parameters"]) == output["personal"]
    assert float(numbers["kB sent"]) == pytest.approx(output["up_bytes"] / 1e3)
    assert float(numbers["kB of memory for one example"]) == pytest.approx(output["memory_bytes"] / 1e3)


def test_the_change_of_a_device_is_its_mean_over_seeds_with_the_range(comparison: Path) -> None:
    gains: dict[str, list[float]] = {}
    for seed in (3, 4):
        before = metrics(comparison, f"fedavg-{seed}", "personalized")
        after = metrics(comparison, f"fedalt-output-{seed}", "finetuned")
        for device, value in after.items():
            gains.setdefault(device, []).append(value - before[device])

    columns = data_sets(comparison)["devices"]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    assert {row["split"] for row in rows} == {"train", "test"}
    own = {r["device"]: r for r in rows if (r["model"], r["split"]) == ("FedAlt (output)", "test")}

    assert set(own) == set(gains)
    for device, found in gains.items():
        row = own[device]
        expected = (statistics.fmean(found), min(found), max(found))
        assert (row["change"], row["low"], row["high"]) == pytest.approx(expected, rel=1e-4)
    ranks = sorted(own.values(), key=lambda row: row["rank"])
    assert [row["rank"] for row in ranks] == [1, 2, 3, 4, 5, 6]
    assert [row["change"] for row in ranks] == sorted(row["change"] for row in ranks)
    assert {row["change"] for row in rows if row["model"] == "FedAvg, continued"} == {None}


def test_the_page_has_every_table_and_chart(comparison: Path) -> None:
    page = ParsedPage(comparison / "report.html")

    assert {"Methods", "Final fine-tuning", "Devices helped and hurt"} <= set(page.texts["h2"])
    # One reference: also of the differences, although Finetune is compared.
    assert "difference from FedAvg, continued" in page.texts["th"]
    assert "better than FedAvg, continued" in page.texts["th"]
    captions = [a["data-caption"] for _, a in page.tags if a.get("data-caption")]
    assert any("The band is the range over seeds." in (caption or "") for caption in captions)


def test_every_chart_is_a_figure(comparison: Path) -> None:
    write_report(comparison)

    assert {path.stem for path in (comparison / "figures").iterdir()} == {
        *("forest", "bytes", "parameters", "metric", "curves"),
        *("scatter", "violins", "sorted", "examples"),
    }


def test_the_loss_by_round_is_the_mean_over_seeds(comparison: Path) -> None:
    losses: dict[int, list[float]] = {}
    for seed in (3, 4):
        lines = (comparison / f"cells/fedalt-output-{seed}/rounds.jsonl").read_text().splitlines()
        for line in map(json.loads, lines):
            if line["work"] == "update":
                losses.setdefault(line["round"] + 1, []).append(line["loss"])
    columns = data_sets(comparison)["rounds"]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    own = {row["round"]: row["loss"] for row in rows if row["model"] == "FedAlt (output)"}

    assert own == pytest.approx({at: statistics.fmean(both) for at, both in losses.items()}, rel=1e-4)
    assert {row["part"] for row in rows} == {"pretraining", "whole model", "output"}
    assert "Finetune" not in {row["method"] for row in rows}


@pytest.mark.usefixtures("no_figures")
def test_the_page_of_one_of_its_runs_has_all_curves(comparison: Path, tmp_path: Path) -> None:
    shutil.copytree(comparison, tmp_path / "grid")

    page = write_report(tmp_path / "grid/cells/fedalt-output-3")

    quantities = (
        "by stage: training loss, learning rate of the shared part, learning rate of the personal part, "
        "devices that replied, MB up and down, processor time."
    )
    assert quantities in page.read_text()


def test_the_answer_names_the_best_model_and_the_reference(comparison: Path) -> None:
    def mean(cell: str, stage: str) -> float:
        means = []
        for seed in (3, 4):
            rows = pq.read_table(comparison / "cells" / f"{cell}-{seed}" / "devices.parquet").to_pylist()
            own = [r for r in rows if (r["stage"], r["split"]) == (stage, "test")]
            means.append(sum(r["metric"] * r["weight"] for r in own) / sum(r["weight"] for r in own))
        return statistics.fmean(means)

    cells = {
        "FedAvg": mean("start", "pretrained"),
        "Local only": mean("local", "finetuned"),
        "FedAvg, continued": mean("fedavg", "personalized"),
        "Finetune": mean("finetune", "finetuned"),
        "Finetune after continued FedAvg": mean("finetune-continued", "finetuned"),
        "FedAlt (output)": mean("fedalt-output", "finetuned"),
    }
    best = max(cells, key=cells.__getitem__)

    text = (comparison / "report.html").read_text()

    start = f"Training alone (Local only) has the best test closeness of 6 models, {cells[best]:.4f}: "
    assert best == "Local only"
    assert re.search(
        re.escape(start) + r"(no clear difference from|[\d.]+ better than) FedAvg, continued", text
    )
    assert "paired over 6 devices and 2 seeds)." in text
    points = data_sets(comparison)["models"]
    assert dict(zip(points["model"], points["mean"], strict=True)) == pytest.approx(cells, rel=1e-4)
    assert points["mean"] == sorted(points["mean"], reverse=True)


@pytest.mark.usefixtures("no_figures")
def test_a_failed_run_is_named(tmp_path: Path) -> None:
    grid = values("fedalt", compare={"settings": {"fedalt": {"personalize": {"shared_lr": 1e30}}}})
    done(tmp_path / "grid", grid)

    assert main(["report", str(tmp_path / "grid")]) == 0

    assert "fedalt-output-3 failed" in (tmp_path / "grid/report.html").read_text()
    assert json.loads((tmp_path / "grid/cells/start-3/summary.json").read_text())["split"] == "test"


@pytest.mark.usefixtures("no_figures")
def test_a_reference_that_is_not_finished_is_named(comparison: Path, tmp_path: Path) -> None:
    folder = tmp_path / "grid"
    shutil.copytree(comparison, folder)
    for cell in ("start-3", "start-4", "fedavg-3", "fedavg-4"):
        change_commit(folder / f"cells/{cell}", finished=False)
    write_report(folder)

    text = (folder / "report.html").read_text()
    assert "FedAvg, continued, the reference for every change, has no result: no change can be drawn." in text
    assert "No model has personal parameters" not in text


@pytest.mark.usefixtures("no_figures")
def test_seeds_that_are_not_finished_are_left_out(comparison: Path, tmp_path: Path) -> None:
    folder = tmp_path / "grid"
    shutil.copytree(comparison, folder)
    for cell in folder.glob("cells/*-4"):
        change_commit(cell, finished=False)
    write_report(folder)

    text = (folder / "report.html").read_text()
    assert f"6 of 12 runs are not finished: resume with `partita compare --resume {folder}`." in text
    assert "6 of 12 runs are not finished" in (folder / "tables/devices.md").read_text()
    assert "averaged over 1 seed." in text
    assert "<dt>Seeds</dt><dd>3</dd>" in text
    assert "paired over 6 devices and 1 seed)." in text
    # Once, below the chart of all models; the files of tables have it too.
    assert text.count(">The mean test closeness of every model") == 1
    assert re.findall(r"<(\w+)[^<>]*>[^<>]*An interval over 1 seed covers", text) == ["figcaption"]
    assert "An interval over 1 seed covers" in (folder / "tables/methods.md").read_text()
    assert "mean over seeds" not in text
    assert "The band is" not in text


@pytest.mark.usefixtures("no_figures")
def test_a_device_without_a_metric_is_there_with_its_reason(tmp_path: Path) -> None:
    grid = values("fedalt", task={"kind": "compared:undefined_on_some"})
    done(tmp_path / "grid", grid)
    write_report(tmp_path / "grid")

    columns = data_sets(tmp_path / "grid")["devices"]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    unknown = [row for row in rows if row["metric"] is None]
    assert unknown
    assert {row["reason"] for row in unknown} == {"`closeness`: the mean is negative"}
    assert {row["change"] for row in unknown} == {None}
    assert all(row["loss"] is not None for row in unknown)


def test_local_training_is_not_drawn_if_it_would_dwarf_the_others(tmp_path: Path) -> None:
    grid = values("fedalt", compare={"settings": {"local": {"finetune": {"personal_lr": 0.9}}}})
    done(tmp_path / "grid", grid)
    page = write_report(tmp_path / "grid").read_text()

    (gain,) = set(re.findall(r"Not drawn, far from the others: Local only: (-[\d.]+)\.", page))
    assert float(gain) < -1
    assert "Local only" in data_sets(tmp_path / "grid")["devices"]["model"]
    assert "model: Local only" not in (tmp_path / "grid/figures/scatter.svg").read_text()


@pytest.mark.usefixtures("no_figures")
def test_the_state_of_scaffold_is_not_called_personal(tmp_path: Path) -> None:
    done(tmp_path / "grid", values("scaffold", "fedalt"))
    write_report(tmp_path / "grid")

    models = data_sets(tmp_path / "grid")["models"]
    personal = dict(zip(models["method"], models["personal"], strict=True))
    assert personal["FedAlt"] > 0
    assert personal["SCAFFOLD"] == 0


@pytest.mark.usefixtures("no_figures")
def test_parts_given_by_patterns_have_their_costs(tmp_path: Path) -> None:
    grid = values("fedalt", compare={"partitions": ["output", "slope.*"], "seeds": 1})
    done(tmp_path / "grid", grid)
    page = write_report(tmp_path / "grid").read_text()

    assert "Costs of a personal part for one device" in page
    assert [row.split(",")[0] for row in (tmp_path / "grid/tables/costs.csv").read_text().splitlines()] == [
        *("personal part", "output", "slope.*"),
    ]


def test_the_page_of_a_comparison_begins_with_the_cells_that_diverged(tmp_path: Path) -> None:
    settings = {"fedalt": {"finetune": {"personal_lr": 50.0}}}

    comparison, _ = done(tmp_path / "grid", values("fedalt", compare={"seeds": 1, "settings": settings}))

    page = comparison_page(comparison)
    assert page.answer.startswith("fedalt-output-3 diverged. ")
    notes = page.tables[0].notes
    assert any(
        note.startswith("fedalt-output-3: the run diverged in the stage `finetuned`") for note in notes
    )


def color_domains(spec: Any) -> Iterator[tuple[str, ...]]:
    """Yield the models in the order of their colors, wherever a specification has a color by model."""
    if isinstance(spec, list):
        for each in spec:
            yield from color_domains(each)
    elif isinstance(spec, dict):
        if spec.get("field") == "model" and "domain" in (spec.get("scale") or {}):
            yield tuple(spec["scale"]["domain"])
        for each in spec.values():
            yield from color_domains(each)


@pytest.fixture(scope="module")
def page(grid: Path) -> Page:
    return comparison_page(reopen(grid))


def test_a_model_has_the_same_color_in_all_charts(page: Page) -> None:
    domains = {chart.name: set(color_domains(chart.spec)) for chart in page.charts}

    colored = {name for name, each in domains.items() if each}
    assert colored == {"bytes", "parameters", "metric", "curves", "scatter", "violins", "sorted"}
    assert len(set().union(*domains.values())) == 1
