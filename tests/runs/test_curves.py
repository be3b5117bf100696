"""A run's curve: blocks of devices combined by weight, the same devices everywhere, bytes and rounds so far."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from partita.data.arrow import write_table
from partita.runs.curves import CurvePoint, curve_of, sample_of
from partita.runs.folder import RunFolder

STAGES = ("pretrained", "personalized", "finetuned")
COLUMNS = dict.fromkeys(("stage", "device", "split"), str) | {
    "weight": int, "metric": float, "top5": float,
}  # fmt: skip


def training(stage: str, round: int, *, work: str = "update") -> dict[str, Any]:
    line = {"stage": stage, "work": work, "round": round, "final": False, "asked": ["a"], "heard": ["a"]}
    return {**line, "bytes": {"down": 100, "up": 10}}


def evaluation(stage: str, round: int, asked: str, *, final: bool = False, **means: Any) -> dict[str, Any]:
    line = {"stage": stage, "work": "evaluate", "round": round, "final": final, "bytes": {"down": 7, "up": 0}}
    return {**line, "asked": list(asked), "heard": list(asked), **means}


def written(folder: Path, lines: Sequence[Mapping[str, Any]], **summary: Any) -> RunFolder:
    """A folder with rounds, and devices a to d whose metric in stage s and place i is s + i / 10."""
    rows = [
        {
            "stage": stage,
            "device": device,
            "split": split,
            "weight": at + 1,
            "metric": s + at / 10,
            "top5": None,
        }
        for s, stage in enumerate(STAGES)
        for at, device in enumerate("abcd")
        for split in ("train", "test")
    ]
    (folder / "rounds.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps({"metric": "accuracy", "split": "test", **summary}))
    write_table(folder / "devices.parquet", rows, COLUMNS)
    return RunFolder(folder)


LINES = [
    training("pretrained", 0),
    evaluation("pretrained", 1, "a", metric=0.5, weight=1, metrics={"top5": {"mean": 0.8, "weight": 1}}),
    evaluation("pretrained", 1, "c", metric=1.0, weight=3),
    training("pretrained", 1),
    evaluation("pretrained", 2, "abcd", final=True, metric=0.9, weight=10),
    training("personalized", 0),
    evaluation("personalized", 1, "abcd", final=True, metric=0.9, weight=10),
    training("finetuned", 0, work="finetune"),
    evaluation("finetuned", 1, "abcd", final=True, metric=0.9, weight=10),
]


def test_a_curve_has_rounds_bytes_and_the_mean_over_the_sample(tmp_path: Path) -> None:
    run = written(tmp_path, LINES)

    points = [(point.stage, point.round, point.sent, point.mean) for point in curve_of(run)]

    # Blocks: (0.5 * 1 + 1.0 * 3) / 4. At the end of a stage: devices a and c, s + 0 and s + 0.2, weights 1 and 3.
    # Every training line is 110 bytes; fine-tuning is no round; the bytes of evaluations do not count.
    assert points == [
        ("pretrained", 1, 110, 0.875),
        ("pretrained", 2, 220, pytest.approx(0.15)),
        ("personalized", 3, 330, pytest.approx(1.15)),
        ("finetuned", 3, 440, pytest.approx(2.15)),
    ]
    assert {point.devices for point in curve_of(run)} == {2}
    assert sample_of(run) == {"a", "c"}


def test_a_further_metric_has_the_points_that_have_a_mean(tmp_path: Path) -> None:
    run = written(tmp_path, LINES)

    assert curve_of(run, "top5") == [CurvePoint(stage="pretrained", round=1, sent=110, mean=0.8, devices=1)]
    assert curve_of(run, "accuracy") == curve_of(run)


def test_a_run_that_is_evaluated_at_the_end_only_can_use_the_sample_of_another(tmp_path: Path) -> None:
    run = written(tmp_path, [line for line in LINES if line["work"] != "evaluate" or line["final"]])

    assert [point.mean for point in curve_of(run)] == pytest.approx(
        [0.2, 1.2, 2.2]
    )  # 0.1 (0 + 2 + 6 + 12) / 10
    assert [point.mean for point in curve_of(run, sample=["b"])] == pytest.approx([0.1, 1.1, 2.1])


def test_points_that_lack_a_device_are_left_out_and_devices_without_data_are_not_missed(
    tmp_path: Path,
) -> None:
    # Of a, c and e, e never has a metric; in round 2 c has none either, and the mean would rise to 0.9.
    lines = [
        training("pretrained", 0),
        evaluation("pretrained", 1, "ace", metric=0.5, weight=4, devices=2),
        training("pretrained", 1),
        evaluation("pretrained", 2, "ace", metric=0.9, weight=1, devices=1),
        training("pretrained", 2),
        evaluation("pretrained", 3, "abcde", final=True, metric=0.2, weight=10, devices=4),
    ]
    run = written(tmp_path, lines)

    points = [(point.round, point.mean, point.devices) for point in curve_of(run)]

    assert points == [(1, 0.5, 2), (3, pytest.approx(0.15), 2)]


def test_the_final_evaluation_replaces_that_of_the_last_round_before_going_back(tmp_path: Path) -> None:
    # Early stopping: evaluated after rounds 1 and 2, then back to round 1.
    lines = [
        training("pretrained", 0),
        evaluation("pretrained", 1, "ac", metric=0.6, weight=4, devices=2),
        training("pretrained", 1),
        evaluation("pretrained", 2, "ac", metric=0.4, weight=4, devices=2),
        evaluation("pretrained", 1, "abcd", final=True, metric=0.2, weight=10, devices=4),
    ]

    points = [(point.round, point.sent, point.mean) for point in curve_of(written(tmp_path, lines))]

    assert points == [(1, 110, 0.6), (2, 220, pytest.approx(0.15))]


def test_a_stage_that_failed_has_no_points(tmp_path: Path) -> None:
    run = written(tmp_path, LINES, failed={"personalized": {}, "finetuned": {}})

    assert [point.stage for point in curve_of(run)] == ["pretrained", "pretrained"]
