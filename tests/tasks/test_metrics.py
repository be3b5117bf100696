"""Choosing metrics by name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from partita.cli import main
from partita.tasks.classification_metrics import CLASSIFICATION, classification_metrics
from partita.tasks.digits import digits
from partita.tasks.image import image
from partita.tasks.metrics import Undefined
from partita.tasks.regression_metrics import REGRESSION
from partita.tasks.synthetic import synthetic
from partita.tasks.tabular import tabular
from tables import png, write


def test_the_first_metric_is_the_headline_and_all_have_readable_names(tmp_path: Path) -> None:
    rows = [
        {"device": "a", "split": split, "x": float(n), "image": png(n), "label": n}
        for split in ("train", "test")
        for n in range(6)
    ]
    data = str(write(tmp_path / "t.parquet", rows))

    ranked = image(data=data, size=6, metrics=["top5", "accuracy"])
    numeric = tabular(data=data, columns=["x"], regression=True, metrics=["r2", "mae", "rmse"])

    assert list(ranked.metrics) == ["top-5 accuracy", "accuracy"]
    assert list(numeric.metrics) == ["R2", "mean absolute error", "RMSE"]
    assert tabular(data=data, columns=["x"], metrics=["log_loss"]).metrics["log loss"].direction == "down"
    assert list(synthetic(metrics=["error", "mae"]).metrics) == ["error", "mean absolute error"]
    assert synthetic(form="mixture", metrics=["auroc"]).headline == "AUROC"


def test_without_the_key_a_task_has_one_metric(tmp_path: Path) -> None:
    assert list(digits().metrics) == ["accuracy"]
    assert list(synthetic().metrics) == ["error"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["macro-f1"], r"`metrics`: classification has no metric 'macro-f1'. Did you mean `macro_f1`\? Its"),
        (["AUROC"], r"classification has no metric 'AUROC'. Did you mean `auroc`\? Its"),
        (["perplexity"], r"classification has no metric 'perplexity'. Its metrics: accuracy, top5, macro_f1"),
        ([3], "classification has no metric 3"),
        ([], r"`metrics` must be a list of names among accuracy, .*, got \[\]"),
        (
            "accuracy",
            r"must be a list of names among accuracy, .*, such as `\[\"accuracy\"\]`, got 'accuracy'",
        ),
        (["auroc", "auroc"], "`metrics` must name each metric once, got 'auroc' 2 times"),
        (["top5"], "`top5` needs more than 5 classes, and there are 5"),
    ],
)
def test_a_metric_that_does_not_fit_is_refused(names: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classification_metrics(names, classes=5)


def test_a_wrong_name_ends_a_run_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["run", 'task.metrics=["acuracy"]']) == 2

    assert capsys.readouterr().err == (
        "partita: [task] digits: `metrics`: classification has no metric 'acuracy'. Did you mean `accuracy`? "
        "Its metrics: accuracy, top5, macro_f1, balanced_accuracy, auroc, log_loss, calibration_error.\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["top5", "auroc", "calibration_error", "rmse", "r2"])
def test_infinite_predictions_have_no_metric(name: str) -> None:
    named = (CLASSIFICATION | REGRESSION)[name]
    targets = torch.tensor([0, 1]) if name in CLASSIFICATION else torch.tensor([0.0, 1.0])
    predictions = torch.zeros(2, 6 if name in CLASSIFICATION else 1)
    predictions[0, 0] = float("inf")

    with pytest.raises(Undefined, match="predictions are not finite"):
        named.metric.compute(predictions, targets)
