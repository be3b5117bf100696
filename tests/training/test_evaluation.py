"""Summaries over devices, against numbers worked by hand."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from partita import Metric
from partita.protocol import Stage
from partita.training.evaluation import Pretrained, columns_of, rows_of, summarize
from small import affine_task, negative_error


def row(
    stage: str, device: str, metric: float | None, weight: int = 1, split: str = "test"
) -> dict[str, Any]:
    measured = {"split": split, "loss": 1.0, "metric": metric, "weight": weight}
    return {"stage": stage, "device": device, "position": "abcd".index(device), **measured}


def rows() -> list[dict[str, Any]]:
    before = {"a": 0.5, "b": 0.5, "c": 0.25, "d": 1.0}
    after = {"a": 0.75, "b": 0.25, "c": 0.25, "d": None}
    return [
        *(
            row("pretrained", device, value, weight=1 + 2 * (device == "d"))
            for device, value in before.items()
        ),
        *(row("personalized", device, value) for device, value in after.items()),
        row("personalized", "a", 0.0, split="train"),
    ]


def test_means_and_spread() -> None:
    numbers = summarize(rows(), affine_task(), devices=4)["stages"]["pretrained"]

    # Values 1/2, 1/2, 1/4, 1 with weights 1, 1, 1, 3.
    assert numbers["weighted_mean"] == pytest.approx(4.25 / 6)
    assert numbers["mean"] == pytest.approx(2.25 / 4)
    # Deviations from 9/16 in sixteenths: -1, -1, -5, 7; their squares sum to 76.
    assert numbers["std"] == pytest.approx((76 / 4) ** 0.5 / 16)
    assert (numbers["min"], numbers["q50"], numbers["max"], numbers["devices"]) == (0.25, 0.5, 1.0, 4)
    # Quantiles are linear between sorted values: position 0.3 of 1/4, 1/2; position 2.7 of 1/2, 1.
    assert numbers["q10"] == pytest.approx(0.25 + 0.3 * 0.25)
    assert numbers["q90"] == pytest.approx(0.5 + 0.7 * 0.5)
    assert (numbers["helped"], numbers["hurt"], numbers["same"]) == (0, 0, 4)


@pytest.mark.parametrize(("direction", "helped", "hurt"), [("up", 1, 1), ("down", 1, 1)])
def test_helped_and_hurt_are_strict_and_leave_out_the_undefined(
    direction: Any, helped: int, hurt: int
) -> None:
    task = affine_task(metrics={"error": Metric(negative_error, direction)})

    summary = summarize(rows(), task, devices=4)

    numbers = summary["stages"]["personalized"]
    assert (summary["metric"], summary["direction"]) == ("error", direction)
    assert (numbers["helped"], numbers["hurt"], numbers["same"], numbers["devices"]) == (helped, hurt, 1, 3)


def test_a_lower_metric_helps_where_lower_is_better() -> None:
    measured = [row("pretrained", "a", 0.5), row("finetuned", "a", 0.25)]

    up, down = (
        summarize(measured, affine_task(metrics={"m": Metric(negative_error, direction)}), devices=4)[
            "stages"
        ]["finetuned"]
        for direction in ("up", "down")
    )

    assert (up["helped"], up["hurt"]) == (0, 1)
    assert (down["helped"], down["hurt"]) == (1, 0)


def test_the_headline_is_in_the_column_metric_and_others_by_name() -> None:
    task = affine_task(metrics={"first": negative_error, "second": negative_error})
    measures = {"examples": 3, "weight": 3, "loss": 0.5, "first": 1.0, "second": 2.0, "reason": None}

    (made,) = rows_of(task, Stage.FINETUNED, "a", {"test": measures})

    assert made["metric"] == 1.0
    assert made["second"] == 2.0
    assert list(columns_of(task)) == [
        *("stage", "model", "device", "seen", "split", "examples", "weight", "loss", "metric", "second"),
        "reason",
    ]
    assert set(made) == set(columns_of(task))


def test_every_further_metric_has_statistics_over_the_devices_that_have_it() -> None:
    further = {"a": 1.0, "b": None, "c": 3.0, "d": None}
    task = affine_task(
        metrics={"first": negative_error, "second": Metric(negative_error, "down"), "third": negative_error}
    )
    before = [
        {**made, "second": further[made["device"]], "third": None}
        for made in rows()
        if made["stage"] == "pretrained"
    ]
    # Known for the second metric alone.
    after = [{**row("finetuned", "d", None, weight=3), "second": 5.0, "third": None}]
    after += [{**row("finetuned", "a", 0.5), "second": 1.0, "third": None}]

    summary = summarize(before + after, task, devices=4)

    assert summary["directions"] == {"first": "up", "second": "down", "third": "up"}
    stages = summary["stages"]
    assert list(stages["pretrained"]["metrics"]) == ["second"]
    assert (
        stages["pretrained"]["metrics"]["second"].items() >= {"mean": 2.0, "max": 3.0, "devices": 2}.items()
    )
    # 1 with the weight 1 and 5 with the weight 3.
    assert stages["finetuned"]["metrics"]["second"]["weighted_mean"] == 4.0
    assert stages["finetuned"]["devices"] == 1


@pytest.mark.parametrize(("direction", "helped", "hurt"), [("up", 2, 1), ("down", 1, 2)])
def test_a_block_of_devices_is_compared_with_the_pretrained_model(
    direction: Any, helped: int, hurt: int
) -> None:
    task = affine_task(metrics={"closeness": Metric(negative_error, direction)})
    before = [*rows(), row("pretrained", "a", 0.0, split="train")]
    # Before: a 1/2, b 1/2, c 1/4, d 1. The second a is of another split, the second d has no metric.
    after = [
        row("personalized", "a", 0.75),
        row("personalized", "a", 0.0, split="train"),
        row("personalized", "b", 0.75),
        row("personalized", "d", 0.25),
        row("personalized", "d", None),
    ]

    pretrained = Pretrained(before, task, devices=4, split="test")

    assert pretrained.against(after) == {"helped": helped, "hurt": hurt, "same": 0}
    assert pretrained.against(after[1:2]) == {"helped": 0, "hurt": 0, "same": 0}
    assert pretrained.against([row("finetuned", "c", 0.25)]) == {"helped": 0, "hurt": 0, "same": 1}


def many_rows(devices: int, *further: str) -> Iterator[dict[str, Any]]:
    """The test rows of three stages, made one at a time."""
    for stage in ("pretrained", "personalized", "finetuned"):
        for position in range(devices):
            value = (position * 7919 % 1000) / 1000
            measured = {"split": "test", "loss": 1.0, "metric": value, "weight": 1, "reason": None}
            own = {"stage": stage, "device": f"d{position}", "position": position}
            yield {**own, **measured, **dict.fromkeys(further, value)}


@pytest.mark.slow
def test_a_summary_of_many_devices_takes_less_than_100_bytes_for_each() -> None:
    devices, further = 20_000, ("one", "two", "three")
    task = affine_task(metrics={"closeness": negative_error, **dict.fromkeys(further, negative_error)})

    tracemalloc.start()
    summary = summarize(many_rows(devices, *further), task, devices=devices)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert summary["stages"]["finetuned"]["metrics"]["three"]["devices"] == devices
    assert peak < 100 * devices


@pytest.mark.slow
def test_the_pretrained_metrics_of_many_devices_are_one_column() -> None:
    devices = 20_000
    tracemalloc.start()

    found = Pretrained(many_rows(devices), affine_task(), devices=devices, split="test")
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept < 10 * devices
    assert peak < 40 * devices
    assert found.against([{**row("personalized", "a", 2.0), "position": 5}]) == {
        "helped": 1,
        "hurt": 0,
        "same": 0,
    }
