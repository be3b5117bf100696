"""Which model a device serves, chosen by validation rows; and runs that never look at test rows."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita import (
    Devices,
    Evaluation,
    FedAlt,
    FedAvg,
    Finetuning,
    Metric,
    Partition,
    Plan,
    Result,
    Task,
    Training,
    pipeline,
)
from partita.cli import main
from partita.protocol import Stage
from partita.report.run.page import run_page
from partita.runs.folder import RunFolder
from partita.runs.warnings import warnings_of
from partita.training.evaluation import DeviceRow, summarize
from partita.training.serving import better, served
from small import Affine, affine_devices, affine_task, negative_error, square_error
from tables import write


def row(stage: str, position: int, metric: float | None, split: str = "validation") -> dict[str, Any]:
    model = "global" if stage == "pretrained" else "personal"
    return {
        "stage": stage,
        "model": model,
        "device": f"d{position}",
        "position": position,
        "split": split,
        "loss": 1.0,
        "metric": metric,
        "weight": 1,
        "reason": None,
    }


def measured(*stages: tuple[str, list[float | None], list[float | None]]) -> list[dict[str, Any]]:
    """Rows of some stages: each with the devices' validation metrics and their test metrics."""
    return [
        row(stage, position, metric, split)
        for stage, *splits in stages
        for split, metrics in zip(("validation", "test"), splits, strict=True)
        for position, metric in enumerate(metrics)
    ]


ROWS = measured(
    # Device 0 is better with its own model, 1 worse, 2 has a tie, of 3 and 4 one side is undefined.
    ("pretrained", [0.5, 0.5, 0.5, None, 0.5], [0.1, 0.2, 0.3, 0.4, 0.5]),
    ("personalized", [0.9, 0.9, 0.9, 0.9, 0.9], [0.0, 0.0, 0.0, 0.0, 0.0]),
    ("finetuned", [0.75, 0.25, 0.5, 0.75, None], [1.1, 1.2, 1.3, 1.4, 1.5]),
)


def chosen(rows: list[dict[str, Any]], *, direction: Any = "up", devices: int = 5) -> list[DeviceRow]:
    task = affine_task(metrics={"closeness": Metric(negative_error, direction)})
    return list(served(lambda: rows, task, devices=devices))


def test_a_device_serves_its_own_model_only_where_it_is_better_on_validation_rows() -> None:
    rows = chosen(ROWS)

    assert {row["stage"] for row in rows} == {Stage.SERVED}
    tested = {row["position"]: (row["model"], row["metric"]) for row in rows if row["split"] == "test"}
    assert tested == {
        0: ("personal", 1.1),
        1: ("global", 0.2),
        2: ("global", 0.3),
        3: ("global", 0.4),
        4: ("global", 0.5),
    }
    assert len(rows) == 10


def test_where_lower_is_better_the_lower_one_is_served() -> None:
    rows = chosen(ROWS, direction="down")

    assert {row["position"] for row in rows if row["model"] == "personal"} == {1}
    assert len(rows) == 10


def test_test_rows_have_no_say() -> None:
    others = [row | ({"metric": -9.0} if row["split"] == "test" else {}) for row in ROWS]

    assert [row["model"] for row in chosen(others)] == [row["model"] for row in chosen(ROWS)]


def test_without_validation_rows_or_a_second_model_all_serve_the_pretrained_one() -> None:
    without = [row for row in ROWS if row["split"] == "test"]
    alone = [row for row in ROWS if row["stage"] == "pretrained"]

    assert {row["model"] for row in chosen(without)} == {"global"}
    assert {row["model"] for row in chosen(alone)} == {"global"}
    assert len(chosen(without)) == 5


def test_on_the_rows_that_chose_nobody_is_hurt() -> None:
    rows = [*ROWS, *chosen(ROWS)]

    numbers = summarize(rows, affine_task(), devices=5, split="validation")["stages"]

    assert (numbers["finetuned"]["helped"], numbers["finetuned"]["hurt"]) == (1, 1)
    assert (numbers["served"]["helped"], numbers["served"]["hurt"], numbers["served"]["same"]) == (1, 0, 3)


def not_finite(rows: list[dict[str, Any]], *places: tuple[str, int, str]) -> list[dict[str, Any]]:
    """Rows in which the loss of some models on some devices and splits is not finite."""
    lost = {"loss": None, "metric": None, "reason": "the loss is nan"}
    return [row | (lost if (row["stage"], row["position"], row["split"]) in places else {}) for row in rows]


def models(rows: list[dict[str, Any]]) -> dict[int, str]:
    """The model that each device is served."""
    return {row["position"]: row["model"] for row in chosen(rows)}


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_model_of_ones_own_that_is_not_finite_is_not_served(split: str) -> None:
    assert models(ROWS)[0] == "personal"

    assert models(not_finite(ROWS, ("finetuned", 0, split))) == models(ROWS) | {0: "global"}


@pytest.mark.parametrize("split", ["validation", "test"])
def test_instead_of_a_pretrained_model_that_is_not_finite_the_own_one_is_served(split: str) -> None:
    # Device 1 is worse with its own model, and of device 4 it has no validation metric.
    rows = not_finite(ROWS, ("pretrained", 1, split), ("pretrained", 4, split))

    assert models(rows) == models(ROWS) | {1: "personal", 4: "personal"}


def test_where_no_model_is_finite_the_pretrained_one_is_served() -> None:
    rows = not_finite(ROWS, ("pretrained", 0, "test"), ("finetuned", 0, "validation"))

    assert models(rows)[0] == "global"


def test_a_model_that_failed_in_training_does_not_replace_one_that_is_not_finite() -> None:
    rows = not_finite(ROWS, ("pretrained", 1, "test"))
    failed = {"loss": None, "metric": None, "reason": "training failed: The loss became nan in step 1."}
    rows = [row | (failed if (row["stage"], row["position"]) == ("finetuned", 1) else {}) for row in rows]

    assert models(rows)[1] == "global"


@pytest.mark.parametrize("before", ["personal", "global"])
@pytest.mark.parametrize("lost", ["new", "old", "both"])
def test_personalized_again_the_finite_model_is_served(before: Any, lost: str) -> None:
    old = "personalized" if before == "personal" else "pretrained"
    stages = {"new": ["finetuned"], "old": [old], "both": ["finetuned", old]}[lost]
    # By the metrics, which are better if higher, the new model of device 0 loses if it should win here.
    new = 0.25 if lost == "old" else 0.75
    rows = measured(
        *((stage, [0.5], [0.5]) for stage in ("pretrained", "personalized")), ("finetuned", [new], [new])
    )
    rows = [row | {"device": "a"} for row in not_finite(rows, *((stage, 0, "test") for stage in stages))]

    found = list(better(lambda: rows, affine_task(), {"a": before}))

    assert {row["is_new"] for row in found} == {lost == "old"}
    assert [row["split"] for row in found] == ["validation", "test"]


def overflows(model: nn.Module, batch: Any) -> Tensor:
    """An error that is not finite in evaluations of a model whose offset is far from 0."""
    is_far = not model.training and abs(model.offset.item()) > 2.0
    return square_error(model, batch) * (float("inf") if is_far else 1.0)


def test_a_device_is_not_served_a_model_that_is_not_finite_on_its_data(tmp_path: Path) -> None:
    # Offsets follow the devices: near 3 for the first, whose loss is then infinite, and near 0.
    task = affine_task(model=Truth, loss=overflows, devices=devices_at([3.0, 0.0, 0.5], noise=0.1))
    plan = Plan(finetune=Finetuning(personal_lr=0.5, epochs=10))

    own = Partition(Truth(), personal="offset")
    results = [pipeline(task, own, plan, out=out) for out in (None, tmp_path / "run")]

    for result in results:
        assert [result.served(device) for device in task.devices] == ["global", "personal", "personal"]
        assert result.model("d00", "served").offset.item() == 0.0
        assert result.model("d00").offset.item() > 2.0
    warnings = warnings_of(RunFolder(tmp_path / "run"))
    assert warnings[0] == (
        "1 device is served the pretrained model, because its own is not finite on its data "
        "(d00: the loss is inf)"
    )
    assert "served the pretrained model" in str(run_page(RunFolder(tmp_path / "run")).sections)


def test_a_device_on_which_no_model_is_finite_is_named(tmp_path: Path) -> None:
    devices = devices_at([3.0, 0.0], noise=0.1)
    inputs, targets = devices["d00"]["test"]
    devices["d00"]["test"] = inputs, targets * float("inf")
    task = affine_task(model=Truth, devices=devices)
    plan = Plan(finetune=Finetuning(personal_lr=0.5, epochs=1))

    result = pipeline(task, Partition(Truth(), personal="offset"), plan, out=tmp_path / "run")

    assert result.served("d00") == "personal"
    said = "1 device has no model that is finite on its data (d00: the loss is inf)"
    assert said in warnings_of(RunFolder(tmp_path / "run"))


class Truth(Affine):
    """Begins with the slope 1, 1, 1 and the offset 0."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.ones_(self.slope.weight)


def devices_at(offsets: list[float], *, noise: float) -> dict[str, Any]:
    """Devices with three noisy training examples and many others, of the slope 1, 1, 1 and these offsets."""
    generator = torch.Generator().manual_seed(11)

    def draw(offset: float, count: int, spread: float) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(count, 3, generator=generator)
        return inputs, inputs.sum(1) + offset + spread * torch.randn(count, generator=generator)

    return {
        f"d{number:02}": {
            "train": draw(offset, 3, noise),
            "validation": draw(offset, 100, 0.1),
            "test": draw(offset, 100, 0.1),
        }
        for number, offset in enumerate(offsets)
    }


def serve(devices: Any, *, split: Any = "test", **options: Any) -> Result:
    plan = Plan(
        finetune=Finetuning(personal_lr=0.5, epochs=10),
        evaluate=Evaluation(split=split, choose="validation"),
    )
    task = affine_task(model=Truth, devices=devices)
    return pipeline(task, Partition(Truth(), personal="offset"), plan, **options)


def models_of(result: Result) -> list[str]:
    """The models that devices serve, in the order of the devices."""
    rows = sorted(result.devices.to_pylist(), key=lambda row: row["device"])
    return [row["model"] for row in rows if (row["stage"], row["split"]) == ("served", "test")]


def test_identical_devices_whose_own_parts_fit_noise_serve_the_global_model() -> None:
    # The global model is the truth; a device's offset follows the noise of three examples.
    result = serve(devices_at([0.0] * 30, noise=1.0))

    stages = result.summary["stages"]
    assert models_of(result).count("global") >= 28
    assert stages["finetuned"]["hurt"] >= 28
    assert stages["served"]["hurt"] <= 2
    assert stages["served"]["weighted_mean"] > stages["finetuned"]["weighted_mean"] + 0.1


def test_a_personal_part_that_never_moves_is_a_tie_and_the_global_model_is_served() -> None:
    task = affine_task(devices=devices_at([1.0] * 4, noise=0.1))
    plan = Plan(finetune=Finetuning(personal_lr=0.0), evaluate=Evaluation(choose="validation"))

    result = pipeline(task, Partition(Affine(), personal="offset"), plan)

    assert models_of(result) == ["global"] * 4
    assert result.summary["stages"]["served"] == result.summary["stages"]["pretrained"]


def test_devices_that_truly_differ_serve_their_own_models() -> None:
    offsets = [3.0, -3.0, 0.0, 4.0, -5.0, 0.0]

    result = serve(devices_at(offsets, noise=0.5))

    assert [model == "personal" for model in models_of(result)] == [offset != 0.0 for offset in offsets]
    numbers = result.summary["stages"]["served"]
    assert (numbers["helped"], numbers["hurt"], numbers["same"]) == (4, 0, 2)


def test_the_rows_of_what_is_served_are_those_of_the_chosen_stage(tmp_path: Path) -> None:
    result = serve(devices_at([3.0, 0.0, -3.0, 0.0], noise=1.0), out=tmp_path / "run")

    rows = result.devices.to_pylist()
    stage_of = {"global": "pretrained", "personal": "finetuned"}
    mine = [row for row in rows if row["stage"] == "served"]
    assert {row["model"] for row in mine} == {"global", "personal"}
    assert {(row["device"], row["split"]) for row in mine} == {
        (f"d{number:02}", split) for number in range(4) for split in ("train", "validation", "test")
    }
    assert all(row | {"stage": stage_of[row["model"]]} in rows for row in mine)
    assert len(mine) == 12
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert list(summary["stages"]) == ["pretrained", "finetuned", "served"]
    assert {"helped", "hurt", "same"} < summary["stages"]["served"].keys()


def test_the_rows_of_what_is_served_are_in_the_order_of_devices(tmp_path: Path) -> None:
    result = serve(devices_at([3.0, 0.0, -3.0, 0.0], noise=1.0), out=tmp_path / "run")

    mine = [row for row in result.devices.to_pylist() if row["stage"] == "served"]
    assert {row["model"] for row in mine} == {"global", "personal"}
    assert [row["device"] for row in mine] == [f"d{n:02}" for n in range(4) for _ in range(3)]


def test_judged_by_the_rows_that_chose_hurt_is_0_by_construction() -> None:
    result = serve(devices_at([0.0] * 6 + [0.5] * 6, noise=1.0), split="validation")

    numbers = result.summary["stages"]
    assert result.summary["split"] == "validation"
    assert numbers["finetuned"]["hurt"] > 0
    assert numbers["served"]["hurt"] == 0
    assert numbers["served"]["helped"] == numbers["finetuned"]["helped"]


class Sealed(dict[str, Any]):
    """A device's data; nobody may look at its test rows."""

    def __getitem__(self, split: str) -> Any:
        assert split != "test", "The test rows were read."
        return super().__getitem__(split)

    def get(self, split: str, default: Any = None) -> Any:
        assert split != "test", "The test rows were read."
        return super().get(split, default)

    def values(self) -> Any:
        raise AssertionError("All rows were read.")

    items = values


def sealed_task() -> Task:
    devices = {device: splits | {"validation": splits["test"]} for device, splits in affine_devices().items()}
    return affine_task(devices=Devices(devices, load=lambda device: Sealed(devices[device])))


def plan(**evaluate: Any) -> Plan:
    return Plan(
        pretrain=Training(method=FedAvg(shared_lr=0.1), rounds=3, devices_per_round=3),
        personalize=Training(method=FedAlt(shared_lr=0.1), rounds=3, devices_per_round=3),
        finetune=Finetuning(personal_lr=0.1, epochs=1),
        evaluate=Evaluation(every=1, **evaluate),
    )


@pytest.mark.parametrize("choose", ["", "validation"])
def test_a_run_judged_by_validation_rows_never_reads_test_rows(choose: Any) -> None:
    lines: list[Any] = []

    result = pipeline(
        sealed_task(),
        Partition(Affine(), personal="offset"),
        plan(split="validation", choose=choose),
        watch=lambda line, *_: lines.append(line),
    )

    assert result.summary["split"] == "validation"
    assert {row["split"] for row in result.devices.to_pylist()} == {"train", "validation"}
    judged = [line for line in lines if line["work"] == "evaluate"]
    assert len(judged) == 3 + 3 + 1
    # 4 examples for testing on each of 6 devices, which validate here.
    assert all(line["weight"] == 24 for line in judged)


def test_the_seal_holds() -> None:
    with pytest.raises(AssertionError, match="The test rows were read."):
        pipeline(sealed_task(), Partition(Affine(), personal="offset"), plan())


@pytest.mark.parametrize("evaluate", [{"choose": "validation"}, {"split": "validation"}])
def test_from_python_too_validation_rows_must_be_there(evaluate: Any, tmp_path: Path) -> None:
    task = affine_task()

    with pytest.raises(ValueError, match="need validation rows, and no device has any"):
        pipeline(task, Partition(Affine(), personal="offset"), plan(**evaluate), out=tmp_path / "run")

    assert not (tmp_path / "run").exists()


QUICK = ["pretrain.rounds=1", "personalize.rounds=1", "finetune.epochs=1", "pretrain.devices_per_round=1"]
QUICK += ["personalize.devices_per_round=1", "personalize.method=fedavg"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.toml").write_text("")
    said = {"a": ("train", "train", "validation", "test"), "b": ("train", "train", "test")}
    rows = [
        {"device": device, "split": split, "x": float(number), "label": number % 2}
        for device, splits in said.items()
        for number, split in enumerate(splits)
    ]
    write(tmp_path / "said.parquet", rows)
    drawn = [{"device": device, "x": float(n), "label": n % 2} for device in "ab" for n in range(20)]
    write(tmp_path / "drawn.parquet", drawn)
    return tmp_path


NO_ROWS = "`evaluate.choose` and `evaluate.split` need validation rows, and no device has any"
NO_MODEL = "[evaluate] `choose` needs a pretrained model"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate.choose=validation"], NO_ROWS),
        (["evaluate.split=validation"], NO_ROWS),
        (["evaluate.choose=validation", "task.kind=small:affine_task"], NO_ROWS),
        (["evaluate.choose=validation", "task.kind=tabular", "task.data=drawn.parquet"], NO_ROWS),
        (["evaluate.choose=validation", "pretrain.rounds=0"], NO_MODEL),
        (["evaluate.choose=test"], "`evaluate.choose` must be '' or 'validation', got 'test'."),
        (["evaluate.split=train"], "`evaluate.split` must be 'test' or 'validation', got 'train'."),
    ],
)
def test_a_choice_that_cannot_be_made_is_one_line(
    arguments: list[str], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "mine.toml", *QUICK, *arguments]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"partita: {words}")
    assert not (here / "runs").exists()


@pytest.mark.parametrize("data", ["task.data=said.parquet", "task.data=drawn.parquet task.validation=0.5"])
def test_a_table_with_validation_rows_of_its_own_or_held_out_can_choose(
    data: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["task.kind=tabular", *data.split(), "evaluate.choose=validation", "out=a"]

    assert main(["run", "mine.toml", *QUICK, *arguments]) == 0

    assert "chosen on validation" in capsys.readouterr().out
    assert "served" in json.loads((here / "a/summary.json").read_text())["stages"]


def test_a_device_that_cannot_choose_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["task.kind=tabular", "task.data=said.parquet", "evaluate.choose=validation"]

    assert main(["run", "mine.toml", *QUICK, *arguments]) == 0

    out = capsys.readouterr().out
    assert "Warning: 1 device has no validation rows and did not choose a model (b)." in out


def test_a_device_without_validation_rows_is_told_of_by_the_split_that_judges(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["task.kind=tabular", "task.data=said.parquet", "evaluate.split=validation"]

    assert main(["run", "mine.toml", *QUICK, *arguments]) == 0

    captured = capsys.readouterr()
    assert "1 device has no validation accuracy (no validation examples)" in captured.out + captured.err
    assert "Validation accuracy over 1 device " in captured.out
