"""Curves on the pages: means and bands over seeds, rounds and bytes of what a method continues."""

from pathlib import Path
from typing import Any

import pytest

from compared import ROUNDS, quiet, started, values
from partita import Evaluation, FedAvg, Metric, Partition, Plan, Training, pipeline
from partita.report.comparison.data import read_comparison
from partita.report.comparison.page import comparison_page
from partita.report.comparison.standings import Standings
from partita.report.curve_data import ComparisonCurves, SeedCurve, domains_of, labels_of, over_seeds
from partita.report.figures import write_figures
from partita.report.run.page import run_page
from partita.runs.curves import CurvePoint, curve_of
from partita.runs.folder import RunFolder
from partita.studies.compare import finish
from partita.studies.comparison import Comparison
from small import affine_task, negative_error


def point(round: int, mean: float, stage: str = "personalized", sent: int = 0) -> CurvePoint:
    return CurvePoint(stage=stage, round=round, sent=sent, mean=mean, devices=1)


def datum(round: int, mean: float, model: str = "a", **further: Any) -> dict[str, Any]:
    own = {"metric": "accuracy", "model": model, "round": round, "mean": mean}
    return {**own, "is_shown": True, "is_trained": True, **further}


def test_a_band_goes_from_the_lowest_to_the_highest_seed() -> None:
    curves = [
        [
            point(0, 0.0, "pretrained"),
            point(2, 0.5, sent=2_000_000),
            point(4, 0.75),
            point(4, 0.8, "finetuned"),
        ],
        [
            point(0, 0.1, "pretrained"),
            point(2, 1.0, sent=4_000_000),
            point(4, 0.25),
            point(4, 0.9, "finetuned"),
        ],
    ]

    found = over_seeds([SeedCurve(points=curve) for curve in curves])

    # The model before any training is left out.
    keys = ("round", "megabytes", "mean", "low", "high", "seeds", "is_trained")
    assert [tuple(each[key] for key in keys) for each in found] == [
        (2, 3.0, 0.75, 0.5, 1.0, 2, True),
        (4, 0.0, 0.5, 0.25, 0.75, 2, True),
        (4, 0.0, pytest.approx(0.85), 0.8, 0.9, 2, False),
    ]


def test_seeds_that_stopped_after_different_rounds_are_aligned_by_the_round_in_the_stage() -> None:
    # Pretraining ended after 20 rounds with one seed and after 23 with the other, personalization after 10
    # and after 5: its evaluations after 5 rounds (of one seed) and 10 (its end) have no counterpart.
    first = [point(0, 0.5, "pretrained"), point(2, 0.6), point(5, 0.64), point(10, 0.62), point(10, 0.64)]
    other = [point(0, 0.7, "pretrained"), point(2, 0.8), point(5, 0.7), point(5, 0.8)]
    finetuned = point(10, 0.9, "finetuned", sent=4_000_000), point(5, 0.7, "finetuned", sent=2_000_000)
    curves = [
        SeedCurve(points=[*first, finetuned[0]], rounds=20, sent=1_000_000),
        SeedCurve(points=[*other, finetuned[1]], rounds=23, sent=3_000_000),
    ]

    found = over_seeds(curves)

    assert [(each["round"], each["seeds"]) for each in found] == [(21.5, 2), (23.5, 2), (29, 2), (29, 2)]
    assert [each["mean"] for each in found] == pytest.approx([0.6, 0.7, 0.72, 0.8])
    # (1 + 4 + 3 + 2) / 2 MB.
    assert found[-1]["megabytes"] == 5.0


def test_a_comparison_draws_what_differs_late_in_training_and_a_run_everything() -> None:
    points = [datum(1, 0.0), datum(5, 0.5), datum(10, 1.0), datum(0, 0.25, is_trained=False)]

    assert domains_of(points, is_late=True) == {"accuracy": pytest.approx((0.25 - 0.045, 1.045))}
    assert domains_of(points) == {"accuracy": pytest.approx((-0.06, 1.06))}


def test_labels_are_apart_and_inside_the_chart() -> None:
    ends = {"a": 0.5, "b": 0.51, "c": 0.98, "d": 0.99, "e": -3.0}
    points = [datum(5, end, model) for model, end in ends.items()]

    labels = labels_of([*points, datum(5, 0.7, "gray", is_shown=False)], {"accuracy": (0.0, 1.0)})

    # 0.08 between two of them: b goes up, c comes down.
    assert {label["model"]: label["at"] for label in labels} == pytest.approx(
        {"a": 0.5, "b": 0.58, "c": 0.92, "d": 1.0, "e": 0.0}
    )


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """A comparison of two seeds that evaluates 3 devices every second round."""
    folder = tmp_path_factory.mktemp("curves")
    settings = values("fedalt", "local", evaluate={"every": 2, "sample": 3})
    settings["pretrain"] = settings["personalize"] = {**ROUNDS, "rounds": 4}
    begun = started(folder / "grid", settings)
    assert not finish(begun, quiet)
    return begun


@pytest.mark.slow
def test_a_method_that_begins_pretrained_continues_the_pretraining(comparison: Comparison) -> None:
    data = read_comparison(comparison)
    curves = ComparisonCurves(data, Standings(data).shown)
    runs = [RunFolder(comparison.folder / f"cells/fedalt-output-{seed}") for seed in (3, 4)]
    starts = [RunFolder(comparison.folder / f"cells/start-{seed}") for seed in (3, 4)]

    own = [each for each in curves.points if each["model"] == "FedAlt (output)"]

    # 4 rounds of pretraining, then evaluations at its start, after 2 rounds, after 4, and after fine-tuning.
    assert [each["round"] for each in own] == [4, 6, 8, 8]
    assert [each["is_trained"] for each in own] == [True, True, True, False]
    assert [each["round"] for each in curves.points if each["model"] == "FedAvg"] == [2, 4]
    bytes_before = [curve_of(start)[-1].sent for start in starts]
    for at, each in enumerate(own):
        points = [curve_of(run)[at] for run in runs]
        sent = [point.sent + before for point, before in zip(points, bytes_before, strict=True)]
        assert each["megabytes"] == pytest.approx(sum(sent) / 2e6)
        assert each["mean"] == pytest.approx(sum(point.mean for point in points) / 2)
        assert (each["low"], each["high"]) == tuple(sorted(point.mean for point in points))
    # Training alone is evaluated at its end only, and restricted to the same devices.
    assert {len(sample) for sample in curves.samples.values()} == {3}
    assert {point.devices for run in runs for point in curve_of(run)} == {3}


@pytest.mark.slow
def test_the_pages_of_a_comparison_and_of_its_runs_have_curves(comparison: Comparison) -> None:
    page, inner = comparison_page(comparison), run_page(comparison.run_of(comparison.cells[0]))

    for each in (page, inner):
        (chart,) = [chart for chart in each.charts if chart.name == "metric"]
        assert "Weighted mean over the same 3 devices" in chart.caption
        panels = chart.spec["vconcat"]
        assert [panel["layer"][0]["encoding"]["x"]["field"] for panel in panels] == ["round", "megabytes"]
    assert "band: lowest to highest seed" in next(c.caption for c in page.charts if c.name == "metric")
    assert {label["model"] for label in page.data["labels"]} == {
        *("FedAvg", "FedAvg, continued", "FedAlt (output)", "Local only"),
    }


@pytest.mark.slow
def test_a_run_has_the_curves_of_all_its_metrics_on_the_page_and_as_figures(tmp_path: Path) -> None:
    error = Metric(lambda p, t: (p - t).abs().mean().item(), "down")
    task = affine_task(metrics={"closeness": negative_error, "error": error})
    training = Training(method=FedAvg(shared_lr=0.1), rounds=3, devices_per_round=3)
    plan = Plan(pretrain=training, evaluate=Evaluation(every=1))

    pipeline(task, Partition(task.model()), plan, out=tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    page = run_page(run)
    write_figures(page.charts[:2], page.data, tmp_path / "figures")

    assert {file.name for file in (tmp_path / "figures").glob("*.svg")} == {"metric.svg", "metrics.svg"}
    # The error is minus the closeness.
    assert [point.mean for point in curve_of(run, "error")] == [-point.mean for point in curve_of(run)]
    assert len(curve_of(run)) == 3


@pytest.mark.slow
def test_a_page_without_curves_says_how_to_get_them(tmp_path: Path) -> None:
    begun = started(tmp_path / "grid", values("fedalt", evaluate={"every": 0}, compare={"seeds": 1}))
    assert not finish(begun, quiet)

    for page in (comparison_page(begun), run_page(begun.run_of(begun.cells[-1]))):
        (section,) = [section for section in page.sections if section.title == "Curves"]
        assert section.chart is None
        assert "With evaluate.every=5" in section.paragraphs[0]
