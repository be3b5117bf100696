"""The page of a run: its contents, and an explanation where something is missing."""

import base64
import gzip
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import altair as alt
import pyarrow.parquet as pq
import pytest

from partita.cli import main
from partita.config.reading import config_of
from partita.report import write
from partita.report.charts.chart import Legend
from partita.report.charts.devices import scatter
from partita.report.page import Page, columns_of
from partita.report.run.data import RunData, ranked, read_run, visits_of
from partita.report.run.page import run_page
from partita.report.sections import distribution_section, examples_section, scatter_section
from partita.report.write import write_report
from partita.runs.folder import RunFolder
from partita.studies import run as runner
from sealing import change_commit, change_config, change_file
from small import affine_task

ROUNDS = {"rounds": 2, "devices_per_round": 3, "batch_size": 3, "shared_lr": 0.05}
pytestmark = pytest.mark.usefixtures("reports")


def finished(folder: Path, **sections: Any) -> Path:
    """A small run in a folder, with changes by section."""
    values: dict[str, Any] = {
        "name": "small",
        "task": {"kind": "compared:plain"},
        "partition": {"personal": "output"},
        "pretrain": ROUNDS,
        "personalize": ROUNDS,
        "finetune": {"epochs": 1, "batch_size": 3, "personal_lr": 0.05, "baseline": True},
        "out": str(folder),
    }
    for section, changes in sections.items():
        values[section] = {**values.get(section, {}), **changes}
    runner.finish(runner.prepare(config_of(values), Path()))
    return folder


@pytest.fixture(scope="module")
def without_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("pages") / "run")


@pytest.fixture(scope="module")
def run(without_page: Path) -> Path:
    write_report(without_page)
    return without_page


class ParsedPage(HTMLParser):
    """The tags of a page with their attributes, and its texts by tag."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and data.strip():
            self.texts.setdefault(self._open[-1], []).append(data.strip())


def data_sets(folder: Path) -> dict[str, dict[str, list[Any]]]:
    found = re.search(r'<script id="data"[^>]*>(.*?)</script>', (folder / "report.html").read_text())
    assert found
    return {
        name: {column: decoded(values) for column, values in columns.items()}
        for name, columns in json.loads(gzip.decompress(base64.b64decode(found[1]))).items()
    }


def decoded(column: Any) -> list[Any]:
    return column if isinstance(column, list) else [column["texts"][at] for at in column["indices"]]


def data_of(folder: Path) -> RunData:
    return read_run(RunFolder(folder))


def test_a_change_is_the_difference_to_the_pretrained_model_on_the_same_device(without_page: Path) -> None:
    run = without_page
    rows = pq.read_table(run / "devices.parquet").to_pylist()
    metric = {(r["stage"], r["device"], r["split"]): r["metric"] for r in rows}
    for row in pq.read_table(run / "finetune/devices.parquet").to_pylist():
        metric["baseline " + row["stage"], row["device"], row["split"]] = row["metric"]
    stages = {"Finetune": "baseline finetuned", "FedAlt": "personalized", "FedAlt, fine-tuned": "finetuned"}

    devices = data_of(run).devices

    assert len(devices) == 4 * 6 * 2
    for row in devices:
        if row["model"] == "FedAvg":
            assert row["change"] is None
        else:
            key = row["device"], row["split"]
            before = metric["pretrained", *key]
            assert row["change"] == metric[stages[row["model"]], *key] - before


def test_a_decrease_of_a_metric_that_should_go_down_is_a_positive_change(tmp_path: Path) -> None:
    up, down = (
        data_of(finished(tmp_path / kind, task={"kind": f"compared:{kind}"})).devices
        for kind in ("plain", "worse")
    )

    # The metric of the one task is the other's with its sign changed, so that the changes are the same.
    assert [row["change"] for row in up] == pytest.approx([row["change"] for row in down])
    assert [row["metric"] for row in up] == pytest.approx([-row["metric"] for row in down])


def test_ranks_sort_the_known_changes_of_one_split() -> None:
    gains = {"a": 0.5, "b": None, "c": -0.25, "d": 0.0}
    rows = [
        {"device": d, "model": "m", "split": s, "change": g}
        for d, g in gains.items()
        for s in ("train", "test")
    ]

    found = ranked(rows, "test")

    assert {r["device"]: r["rank"] for r in found if r["split"] == "test"} == {
        "a": 3,
        "b": None,
        "c": 1,
        "d": 2,
    }
    assert {r["rank"] for r in found if r["split"] == "train"} == {None}


def check_charts(page: Page) -> None:
    """Raise if a specification is not valid Vega-Lite: charts are not validated where they are drawn."""
    for chart in page.charts:
        for spec in filter(None, (chart.spec, chart.narrow)):
            alt.Root.validate(dict(spec))


def test_every_chart_is_valid(without_page: Path) -> None:
    page = run_page(RunFolder(without_page))

    assert page.charts
    check_charts(page)


@pytest.mark.slow
def test_every_chart_and_every_table_is_written_in_three_formats(run: Path) -> None:
    begin = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}
    for name in ("forest", "curves", "scatter", "violins", "sorted", "examples"):
        for kind, start in begin.items():
            assert (run / "figures" / f"{name}.{kind}").read_bytes().startswith(start)
    for name in ("models", "traffic"):
        assert {p.suffix for p in (run / "tables").glob(f"{name}.*")} == {".csv", ".md", ".tex"}
    # Six devices, three models and two splits: a point each.
    points = (run / "figures/scatter.svg").read_text().count('aria-roledescription="point"')
    assert points == 36


def test_the_page_makes_no_request_and_describes_every_chart(run: Path) -> None:
    page = ParsedPage(run / "report.html")

    links = [a[key] for _, a in page.tags for key in ("src", "href") if a.get(key)]
    assert not [link for link in links if link and re.match(r"(https?:)?//", link)]
    assert all((run / link).is_file() for link in links if link and link.startswith("figures/"))
    figures = [a for tag, a in page.tags if a.get("data-chart")]
    assert len(figures) == 6
    assert all(len(a["data-caption"] or "") > 20 for a in figures)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert dict(page.tags)["html"] == {"lang": "en"}


def test_the_page_holds_each_data_set_once_with_every_visible_digit(run: Path) -> None:
    data = data_sets(run)

    assert set(data) == {"devices", "rounds", "models", "sizes", "visits"}
    changes = {(r["model"], r["device"], r["split"]): r["change"] for r in data_of(run).devices}
    columns = data["devices"]
    for model, device, split, change in zip(
        columns["model"], columns["device"], columns["split"], columns["change"], strict=True
    ):
        own = changes[model, device, split]
        assert change is None if own is None else change == pytest.approx(own, rel=1e-4)
    assert [len(data["rounds"][name]) for name in ("loss", "shared_lr", "devices")] == [4, 4, 4]


@pytest.mark.slow
def test_missing_stages_are_named_and_have_no_empty_charts(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", personalize={"rounds": 0}, finetune={"epochs": 0, "baseline": False})
    write_report(folder)

    text = (folder / "report.html").read_text()
    assert "No personalization: FedAvg has a test closeness of" in text
    assert "This run has no personalization stage." in text
    assert "No model of the stage `finetuned`." in text
    assert {path.stem for path in (folder / "figures").iterdir()} == {"curves", "examples"}


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_devices_without_a_metric_are_a_warning(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", task={"kind": "compared:undefined_on_some"})
    write_report(folder)

    text = (folder / "report.html").read_text()
    assert re.search(
        r"Warning: \d (device has|devices have) no test closeness \(d\d: `closeness`: the mean is negative\)",
        text,
    )


def test_a_metric_that_no_device_has_leaves_the_rest_of_the_page(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", task={"kind": "report.run.test_page:unmeasured"})
    write_report(folder)

    text = (folder / "report.html").read_text()
    assert "The pretrained model has no test closeness on any device: there is nothing to compare." in text
    assert "Traffic and memory" in text
    assert {path.stem for path in (folder / "figures").iterdir()} == {"curves", "examples"}


def unmeasured() -> Any:
    return affine_task(metrics={"closeness": lambda predictions, targets: None})


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("method", "title"),
    [("fedavg", "FedAvg, continued"), pytest.param("scaffold", "SCAFFOLD", marks=pytest.mark.slow)],
)
def test_more_training_is_not_called_personalization(tmp_path: Path, method: str, title: str) -> None:
    folder = finished(tmp_path / "run", personalize={"method": method}, finetune={"baseline": False})
    write_report(folder)

    text = (folder / "report.html").read_text()
    assert f"More training without a personal part ({title})" in text
    assert "Personalization (" not in text


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_the_page_names_the_split_of_the_metric(tmp_path: Path) -> None:
    task = {"kind": "compared:plain", "validation": 0.3}
    folder = finished(tmp_path / "run", task=task, evaluate={"split": "validation"})
    write_report(folder)

    text = (folder / "report.html").read_text()
    assert 'data-split="validation"' in text
    assert "on the validation split, lowest first" in text
    assert "test closeness" not in text


@pytest.mark.slow
def test_few_devices_have_no_violins_and_old_figures_are_deleted(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", evaluate={"devices": 1})
    (folder / "figures/mine").mkdir(parents=True)
    (folder / "figures/violins.png").touch()
    (folder / "figures/poster.png").touch()
    write_report(folder)

    text = (folder / "report.html").read_text()
    assert (
        "Not drawn (fewer than 5 devices, or the same change on all of them): Finetune, FedAlt, FedAlt, fine-tuned."
        in text
    )
    assert "Every device has 6 training examples: nothing to draw." in text
    assert not (folder / "figures/violins.png").exists()
    assert (folder / "figures/poster.png").exists()


def test_numbers_that_are_not_finite_are_null_in_the_data() -> None:
    assert columns_of([{"loss": math.inf}, {"loss": math.nan}, {"loss": 0.5}]) == {"loss": [None, None, 0.5]}


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_special_characters_in_a_run_do_not_break_the_page(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    change_config(folder, 'name = "small"', 'name = "<b>&</script>"')
    write_report(folder)

    page = ParsedPage(folder / "report.html")
    assert page.texts["h1"] == ["<b>&</script>"]
    assert "b" not in dict(page.tags)


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_the_command_writes_the_same_page_again_and_prints_its_path(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run / "report.html").read_bytes()
    (run / "report.html").unlink()

    assert main(["report", str(run)]) == 0

    assert capsys.readouterr().out == f"The report is {run / 'report.html'}\n"
    assert (run / "report.html").read_bytes() == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("none", "` is not the folder of a run or a comparison: it has no `config.toml`."),
        ("empty", "` is not the folder of a run or a comparison: it has no `config.toml`."),
        ("half", "` is not finished: resume it with `partita run --resume"),
        ("uncommitted", "/commit.json` is missing: restore it from a copy."),
        ("damaged", "/devices.parquet` is damaged: its content is not what was committed. Restore it"),
        ("lost", "/devices.parquet` is missing: restore it from a copy."),
    ],
)
def test_a_folder_without_a_finished_run_is_an_error_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("half", "uncommitted", "damaged", "lost"):
        shutil.copytree(run, tmp_path / name)
    change_commit(tmp_path / "half", finished=False)
    (tmp_path / "uncommitted/commit.json").unlink()
    (tmp_path / "damaged/devices.parquet").write_bytes(b"PAR1")
    (tmp_path / "lost/devices.parquet").unlink()

    assert main(["report", str(tmp_path / given)]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert f"`{tmp_path / given}{message}" in line


def devices(model: str, changes: list[float], **more: Any) -> list[dict[str, Any]]:
    return [
        {"model": model, "split": "test", "change": change, "rank": 1, "examples": 3, **more}
        for change in changes
    ]


def test_violins_show_models_whose_changes_vary_and_name_the_others() -> None:
    rows = [*devices("wide", [0, 1, 2, 3, 4]), *devices("even", [1] * 9), *devices("few", [0, 1])]

    models = ["wide", "even", "few"]
    section = distribution_section(rows, "change in accuracy", Legend(models=models, shown=models))

    assert section.chart
    assert section.chart.caption == (
        "Distribution of the change in accuracy over devices, from +0.0000 to +4.0000. A violin ends at its "
        "model's lowest and highest device. Not drawn (fewer than 5 devices, or the same change on all of "
        "them): even, few."
    )


def test_equal_numbers_of_examples_are_a_sentence_instead_of_a_chart() -> None:
    chart = scatter("change", "", Legend(models=["m"], shown=["m"]))
    (same,) = scatter_section(devices("m", [0, 1]), chart).paragraphs

    assert same == "Every device has 3 training examples: nothing to draw."
    assert examples_section([3, 3]).paragraphs == ["2 devices with 3 training examples each."]
    (unknown,) = scatter_section(devices("m", [0, 1], examples=None), chart).paragraphs
    assert unknown == "The number of training examples of the devices is not known."
    assert scatter_section([*devices("m", [0]), *devices("m", [0], examples=4)], chart).chart == chart


def test_visits_of_a_device_are_counted_by_stage(run: Path) -> None:
    counts: dict[tuple[str, str], int] = {}
    names = {"pretrained": "pretraining", "personalized": "personalizing", "finetuned": "fine-tuning"}
    for line in map(json.loads, (run / "rounds.jsonl").read_text().splitlines()):
        for device in line["asked"] if line["work"] != "evaluate" else ():
            key = device, names[line["stage"]]
            counts[key] = counts.get(key, 0) + 1

    visits = data_of(run).visits

    assert {(v["device"], v["stage"]): v["asked"] for v in visits} == counts
    assert sum(v["asked"] for v in visits if v["stage"] == "pretraining") == 2 * 3
    assert all(v["replied"] == v["asked"] and v["failed"] is None for v in visits)


def test_visits_count_replies_and_keep_the_reason_of_a_failure() -> None:
    line = {"stage": "personalized", "asked": ["a", "b"], "heard": ["b"], "failed": {"a": "no disk"}}

    failed, replied = visits_of([line, {**line, "asked": ["b"], "failed": {}}])

    assert failed == {"device": "a", "stage": "personalizing", "asked": 1, "replied": 0, "failed": "no disk"}
    assert replied == {"device": "b", "stage": "personalizing", "asked": 2, "replied": 2, "failed": None}


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_the_original_command_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    typed = ["run", "pretrain.rounds=1", "personalize.rounds=0", "finetune.epochs=1", "out=a run"]
    assert main(typed) == 0

    facts = ParsedPage(tmp_path / "a run/report.html").texts
    command = "partita run pretrain.rounds=1 personalize.rounds=0 finetune.epochs=1 'out=a run'"
    assert dict(zip(facts["dt"], facts["dd"], strict=True))["Original command"] == command


@pytest.mark.slow
def test_two_processes_may_write_one_report_at_once(run: Path) -> None:
    before = (run / "report.html").read_bytes()
    command = [Path(sys.executable).with_name("partita"), "report", run]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) for _ in range(2)]

    assert [each.communicate()[1] for each in both] == [b""] * 2
    assert (run / "report.html").read_bytes() == before
    assert not [*run.rglob("*.tmp")]


@pytest.mark.usefixtures("no_figures")
def test_the_command_prints_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--json", "--quiet"]) == 0

    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"folder": str(run), "page": str(run / "report.html")}
    assert captured.err == ""


def test_an_interrupted_report_names_the_command_that_writes_it(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(write, "write_report", interrupt)

    assert main(["report", str(run), "--quiet"]) == 130
    line = f"partita: Interrupted. Only the report is missing: write it with `partita report {run}`.\n"
    assert capsys.readouterr().err == line


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_the_answer_is_about_the_models_that_devices_serve(tmp_path: Path) -> None:
    task = {"kind": "compared:plain", "validation": 0.3}
    folder = finished(tmp_path / "run", task=task, evaluate={"choose": "validation"})
    write_report(folder)

    served = json.loads((folder / "summary.json").read_text())["stages"]["served"]
    text = (folder / "report.html").read_text()
    assert f"Of 6 devices: {served['helped']} helped, {served['hurt']} hurt" in text
    assert "chosen on validation has a test closeness of" in text
    assert re.search(r"and [+-]?[\d.]+ by each device&#39;s choice on its validation split\.", text)
    assert f"chosen on validation improves {served['helped']} of 6 devices." in text


def test_both_learning_rates_are_in_the_data(run: Path) -> None:
    rounds = data_sets(run)["rounds"]
    at = rounds["stage"].index("personalizing")

    assert rounds["shared_lr"][at] == rounds["personal_lr"][at] == 0.05
    assert rounds["personal_lr"][0] is None


COSTS = {"personal": 1, "up_bytes": 12_000, "memory_bytes": 3_500_000}


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("costs", "sentence"),
    [
        (
            COSTS,
            "A device keeps 1 personal parameter, sends 12 kB per round of personalization and needs 3.5 MB of "
            "memory to train on one example.",
        ),
        pytest.param(
            COSTS | {"personal": 1200, "memory_bytes": None, "sizes": []},
            "A device keeps at most 1,200 personal parameters and sends at most 12 kB per round of "
            "personalization.",
            marks=pytest.mark.slow,
        ),
        (None, "This run has no record of the costs for a device."),
    ],
)
def test_costs_of_a_device_are_those_that_the_run_has_recorded(
    run: Path, tmp_path: Path, costs: dict[str, Any] | None, sentence: str
) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    change_file(folder, "costs.json", json.dumps(costs).encode() if costs else None)

    assert sentence in write_report(folder).read_text()
