"""The page of a run: what it says, and that it says it where something is missing."""

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

import pyarrow.parquet as pq
import pytest

from partita.cli import main
from partita.config.reading import config_of
from partita.report import charts, draw
from partita.report.page import _columns
from partita.report.run_facts import _visits, facts_of, ranked
from partita.report.run_page import write_run_page
from partita.report.sections import scattered, sizes_of, spread
from partita.studies import run as runner
from small import affine_task

ROUNDS = {"rounds": 2, "devices_per_round": 3, "batch_size": 3, "shared_lr": 0.05}
pytestmark = pytest.mark.usefixtures("drawn")


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
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = finished(tmp_path_factory.mktemp("pages") / "run")
    write_run_page(folder)
    return folder


class Read(HTMLParser):
    """Texts and attributes of a page, by tag."""

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


def data_of(folder: Path) -> dict[str, dict[str, list[Any]]]:
    found = re.search(
        r'<script id="data"[^>]*>(.*?)</script>', (folder / "report.html").read_text(), re.DOTALL
    )
    assert found
    return {
        name: {column: whole(values) for column, values in columns.items()}
        for name, columns in json.loads(found[1]).items()
    }


def whole(column: Any) -> list[Any]:
    return column if isinstance(column, list) else [column["texts"][at] for at in column["at"]]


def test_a_change_is_a_devices_own_metric_against_that_of_the_pretrained_model(run: Path) -> None:
    rows = pq.read_table(run / "devices.parquet").to_pylist()
    metric = {(r["stage"], r["device"], r["split"]): r["metric"] for r in rows}
    for row in pq.read_table(run / "finetune/devices.parquet").to_pylist():
        metric["baseline " + row["stage"], row["device"], row["split"]] = row["metric"]
    stages = {"Finetune": "baseline finetuned", "FedAlt": "personalised", "FedAlt, finetuned": "finetuned"}

    devices = facts_of(run).devices

    assert len(devices) == 4 * 6 * 2
    for row in devices:
        if row["model"] == "FedAvg":
            assert row["gain"] is None
        else:
            key = row["device"], row["split"]
            before = metric["pretrained", *key]
            assert row["gain"] == metric[stages[row["model"]], *key] - before


def test_where_lower_is_better_a_decrease_is_a_gain(tmp_path: Path) -> None:
    up, down = (
        facts_of(finished(tmp_path / kind, task={"kind": f"compared:{kind}"})).devices
        for kind in ("plain", "worse")
    )

    # The metric of the one task is the other's with its sign changed, so that the gains are the same.
    assert [row["gain"] for row in up] == pytest.approx([row["gain"] for row in down])
    assert [row["metric"] for row in up] == pytest.approx([-row["metric"] for row in down])


def test_ranks_are_of_one_split_by_change_and_leave_out_the_unknown() -> None:
    gains = {"a": 0.5, "b": None, "c": -0.25, "d": 0.0}
    rows = [
        {"device": d, "model": "m", "split": s, "gain": g}
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


def test_the_answer_is_one_sentence_with_the_summarys_numbers(run: Path) -> None:
    stages = json.loads((run / "summary.json").read_text())["stages"]
    first, last = stages["pretrained"], stages["finetuned"]

    text = (run / "report.html").read_text()

    word = "improved" if last["weighted_mean"] > first["weighted_mean"] else "worsened"
    assert (
        f"Personalization (FedAlt, finetuned) {word} test closeness from {first['weighted_mean']:.4f} to "
        f"{last['weighted_mean']:.4f} over 6 devices: it helped {last['helped']}, hurt {last['hurt']} and left "
        f"{last['same']} unchanged."
    ) in text


def test_every_chart_is_drawn_to_three_kinds_of_files_and_every_table_too(run: Path) -> None:
    begin = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}
    for name in ("curves", "parameters", "scatter", "violins", "sorted", "examples"):
        for kind, start in begin.items():
            assert (run / "figures" / f"{name}.{kind}").read_bytes().startswith(start)
    for name in ("models", "traffic"):
        assert {p.suffix for p in (run / "tables").glob(f"{name}.*")} == {".csv", ".md", ".tex"}
    # Six devices, three models and two splits: a point each.
    points = (run / "figures/scatter.svg").read_text().count('aria-roledescription="point"')
    assert points == 36


def test_the_page_asks_no_network_and_names_all_it_shows(run: Path) -> None:
    page = Read(run / "report.html")

    links = [a[key] for _, a in page.tags for key in ("src", "href") if a.get(key)]
    assert not [link for link in links if link and re.match(r"(https?:)?//", link)]
    assert all((run / link).is_file() for link in links if link and link.startswith("figures/"))
    figures = [a for tag, a in page.tags if a.get("data-chart")]
    assert len(figures) == 6
    assert all(len(a["data-says"] or "") > 20 for a in figures)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert dict(page.tags)["html"] == {"lang": "en"}


def test_the_page_holds_every_digit_that_can_be_seen_and_each_set_of_data_once(run: Path) -> None:
    data = data_of(run)

    assert set(data) == {"devices", "rounds", "models", "sizes", "visits"}
    gains = {(r["model"], r["device"], r["split"]): r["gain"] for r in facts_of(run).devices}
    columns = data["devices"]
    for model, device, split, gain in zip(
        columns["model"], columns["device"], columns["split"], columns["gain"], strict=True
    ):
        own = gains[model, device, split]
        assert gain is None if own is None else gain == pytest.approx(own, rel=1e-4)
    assert [len(data["rounds"][name]) for name in ("loss", "shared", "heard")] == [4, 4, 4]


def test_what_a_run_left_out_is_said_and_not_drawn_empty(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", personalize={"rounds": 0}, finetune={"epochs": 0, "baseline": False})
    write_run_page(folder)

    text = (folder / "report.html").read_text()
    assert "Nothing was personalised: FedAvg has a test closeness of" in text
    assert "No stage of this run personalised." in text
    assert "This run has no model of the stage `finetuned`." in text
    assert {path.stem for path in (folder / "figures").iterdir()} == {"curves", "examples"}


@pytest.mark.usefixtures("no_figures")
def test_a_metric_that_some_devices_do_not_have_is_said(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", task={"kind": "compared:undefined_on_some"})
    write_run_page(folder)

    text = (folder / "report.html").read_text()
    assert re.search(
        r"Mind: \d devices? without a test closeness \(d\d: `closeness`: the mean is negative\)", text
    )


def test_a_metric_that_no_device_has_is_said_and_the_rest_is_there(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", task={"kind": "report.test_run_page:unmeasured"})
    write_run_page(folder)

    text = (folder / "report.html").read_text()
    assert "No device has a test closeness of the pretrained model, so there is nothing to compare." in text
    assert "Traffic and memory" in text
    assert {path.stem for path in (folder / "figures").iterdir()} == {"curves"}


def unmeasured() -> Any:
    return affine_task(metrics={"closeness": lambda predictions, targets: None})


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(("method", "title"), [("fedavg", "FedAvg, continued"), ("scaffold", "SCAFFOLD")])
def test_more_training_is_not_called_personalization(tmp_path: Path, method: str, title: str) -> None:
    folder = finished(tmp_path / "run", personalize={"method": method}, finetune={"baseline": False})
    write_run_page(folder)

    text = (folder / "report.html").read_text()
    assert f"More training, with nothing personal ({title})" in text
    assert "Personalization (" not in text


@pytest.mark.usefixtures("no_figures")
def test_the_rows_that_judge_are_named(tmp_path: Path) -> None:
    task = {"kind": "compared:plain", "validation": 0.3}
    folder = finished(tmp_path / "run", task=task, evaluate={"split": "validation"})
    write_run_page(folder)

    text = (folder / "report.html").read_text()
    assert 'data-split="validation"' in text
    assert "on validation rows, the least first" in text
    assert "test closeness" not in text


def test_few_devices_have_no_spread_and_what_an_earlier_page_drew_goes(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", evaluate={"devices": 1})
    (folder / "figures/mine").mkdir(parents=True)
    (folder / "figures/violins.png").touch()
    (folder / "figures/poster.png").touch()
    write_run_page(folder)

    text = (folder / "report.html").read_text()
    assert "at least 5 devices that do not all change alike: Finetune, FedAlt, FedAlt, finetuned." in text
    assert "Every device has 6 training examples: nothing to draw a change against." in text
    assert not (folder / "figures/violins.png").exists()
    assert (folder / "figures/poster.png").exists()


def test_numbers_that_are_none_do_not_break_the_data() -> None:
    assert _columns([{"loss": math.inf}, {"loss": math.nan}, {"loss": 0.5}]) == {"loss": [None, None, 0.5]}


@pytest.mark.usefixtures("no_figures")
def test_texts_of_a_run_cannot_break_the_page(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('name = "small"', 'name = "<b>&</script>"'))
    write_run_page(folder)

    page = Read(folder / "report.html")
    assert page.texts["h1"] == ["<b>&</script>"]
    assert "b" not in dict(page.tags)


@pytest.mark.usefixtures("no_figures")
def test_the_command_writes_the_page_again_and_says_where(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run / "report.html").read_bytes()
    (run / "report.html").unlink()

    assert main(["report", str(run)]) == 0

    assert capsys.readouterr().out == f"The page is {run / 'report.html'}\n"
    assert (run / "report.html").read_bytes() == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("none", "holds neither a run nor a comparison: it has no `config.toml`."),
        ("empty", "holds neither a run nor a comparison: it has no `config.toml`."),
        ("half", "holds no finished run: go on with `partita run --resume"),
        ("damaged", "is damaged, a file in it cannot be read: "),
        ("lost", "is damaged, a file in it cannot be read: "),
    ],
)
def test_a_folder_without_a_finished_run_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str, said: str
) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("half", "damaged", "lost"):
        shutil.copytree(run, tmp_path / name)
    (tmp_path / "half/commit.json").unlink()
    (tmp_path / "damaged/devices.parquet").write_bytes(b"PAR1")
    (tmp_path / "lost/devices.parquet").unlink()

    assert main(["report", str(tmp_path / given)]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert f"`{tmp_path / given}` {said}" in line


def devices(model: str, gains: list[float], **more: Any) -> list[dict[str, Any]]:
    return [{"model": model, "split": "test", "gain": gain, "examples": 3, **more} for gain in gains]


def test_a_spread_is_drawn_of_models_that_have_one_and_the_others_are_named() -> None:
    rows = [*devices("wide", [0, 1, 2, 3, 4]), *devices("even", [1] * 9), *devices("few", [0, 1])]

    section = spread(rows, "change in accuracy", ["wide", "even", "few"])

    assert section.chart
    assert section.chart.says.endswith(
        "from +0.0000 to +4.0000. No spread to draw, which takes at least 5 devices "
        "that do not all change alike: even, few."
    )


def test_where_all_devices_have_as_many_examples_nothing_is_drawn_against_them() -> None:
    chart = charts.scatter("change", "", charts.Key(methods=["m"], shown=["m"]))
    (same,) = scattered(devices("m", [0, 1]), chart).texts

    assert same == "Every device has 3 training examples: nothing to draw a change against."
    assert sizes_of([3, 3]).texts == ["2 devices, with 3 training examples each."]
    (unknown,) = scattered(devices("m", [0, 1], examples=None), chart).texts
    assert unknown == "No device says its size: nothing to draw a change against."
    assert scattered([*devices("m", [0]), *devices("m", [0], examples=4)], chart).chart == chart


def test_how_often_a_device_was_asked_is_counted_by_stage(run: Path) -> None:
    counts: dict[tuple[str, str], int] = {}
    names = {"pretrained": "pretraining", "personalised": "personalizing", "finetuned": "finetuning"}
    for line in map(json.loads, (run / "rounds.jsonl").read_text().splitlines()):
        for device in line["asked"] if line["work"] != "evaluate" else ():
            key = device, names[line["stage"]]
            counts[key] = counts.get(key, 0) + 1

    visits = facts_of(run).visits

    assert {(v["device"], v["stage"]): v["asked"] for v in visits} == counts
    assert sum(v["asked"] for v in visits if v["stage"] == "pretraining") == 2 * 3
    assert all(v["heard"] == v["asked"] and v["failed"] is None for v in visits)


def test_a_device_that_failed_says_so() -> None:
    line = {"stage": "personalised", "asked": ["a", "b"], "heard": ["b"], "failed": {"a": "no disk"}}

    failed, heard = _visits([line, {**line, "asked": ["b"], "failed": {}}])

    assert failed == {"device": "a", "stage": "personalizing", "asked": 1, "heard": 0, "failed": "no disk"}
    assert heard == {"device": "b", "stage": "personalizing", "asked": 2, "heard": 2, "failed": None}


@pytest.mark.usefixtures("no_figures")
def test_what_was_typed_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    typed = ["run", "pretrain.rounds=1", "personalize.rounds=0", "finetune.epochs=1", "out=a run"]
    assert main(typed) == 0

    facts = Read(tmp_path / "a run/report.html").texts
    command = "partita run pretrain.rounds=1 personalize.rounds=0 finetune.epochs=1 'out=a run'"
    assert dict(zip(facts["dt"], facts["dd"], strict=True))["The command that made it"] == command


@pytest.mark.slow
def test_two_may_draw_one_page_at_once(run: Path) -> None:
    before = (run / "report.html").read_bytes()
    command = [Path(sys.executable).with_name("partita"), "report", run]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) for _ in range(2)]

    assert [each.communicate()[1] for each in both] == [b""] * 2
    assert (run / "report.html").read_bytes() == before
    assert not [*run.rglob("*.tmp")]


@pytest.mark.usefixtures("no_figures")
def test_the_command_for_programs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--json", "--quiet"]) == 0

    said = capsys.readouterr()
    assert json.loads(said.out) == {"folder": str(run), "page": str(run / "report.html")}
    assert said.err == ""


def test_a_page_that_was_interrupted_can_be_drawn_later(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(draw, "write_report", interrupt)

    assert main(["report", str(run), "--quiet"]) == 130
    line = f"partita: Interrupted. All is done but the page: `partita report {run}` draws it.\n"
    assert capsys.readouterr().err == line


@pytest.mark.usefixtures("no_figures")
def test_what_is_served_is_the_answer(tmp_path: Path) -> None:
    task = {"kind": "compared:plain", "validation": 0.3}
    folder = finished(tmp_path / "run", task=task, evaluate={"choose": "validation"})
    write_run_page(folder)

    served = json.loads((folder / "summary.json").read_text())["stages"]["served"]
    text = (folder / "report.html").read_text()
    assert f"over 6 devices: it helped {served['helped']}, hurt {served['hurt']}" in text
    assert "Personalization (the better on validation)" in text
    assert f"{served['helped']} of 6 are above zero under the better on validation." in text


def test_both_rates_are_drawn(run: Path) -> None:
    rounds = data_of(run)["rounds"]
    at = rounds["stage"].index("personalizing")

    assert rounds["shared"][at] == rounds["personal"][at] == 0.05
    assert rounds["personal"][0] is None
