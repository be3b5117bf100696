"""Unseen devices leave no trace in training, and are personalized from the trained model alone."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from partita import (
    Evaluation,
    FedAlt,
    FedAvg,
    Finetuning,
    LocalScaffold,
    Method,
    Metric,
    Partition,
    Plan,
    Result,
    Task,
    Training,
    full,
    pipeline,
)
from partita.config.reading import config_of
from partita.data.examples import Shuffled, examples_of
from partita.data.unseen import is_unseen
from partita.protocol import derive_seed
from partita.runs.folder import RunFolder
from partita.studies.run import finish, prepare
from small import affine_devices, affine_task, same_bits
from tables import write

SHARE = 0.3
PLAN = Plan(
    pretrain=Training(method=FedAvg(shared_lr=0.1, batch_size=4), rounds=3, devices_per_round=3),
    personalize=Training(method=FedAlt(shared_lr=0.1, batch_size=4), rounds=3, devices_per_round=3),
    finetune=Finetuning(personal_lr=0.1, epochs=2, batch_size=4),
    evaluate=Evaluation(unseen=SHARE),
)
SCAFFOLD = Method(local=LocalScaffold, shared_lr=0.1, batch_size=4, personal_epochs=0)
DEVICES = affine_devices(12)
UNSEEN = [device for device in DEVICES if is_unseen(device, SHARE)]
SEEN = [device for device in DEVICES if device not in UNSEEN]


def offset(task: Task) -> Partition:
    return Partition(task.model(), personal="offset")


@pytest.fixture(scope="module")
def result() -> Result:
    task = affine_task(devices=DEVICES)
    return pipeline(task, offset(task), PLAN)


def rows_of(result: Result, **values: Any) -> list[dict[str, Any]]:
    rows = result.devices.to_pylist()
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def files_of(folder: Path, name: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / name).iterdir())}


def test_training_is_as_if_unseen_devices_did_not_exist(result: Result) -> None:
    task = affine_task(devices={device: DEVICES[device] for device in SEEN})

    without = pipeline(task, offset(task), replace(PLAN, evaluate=Evaluation()))

    assert (SEEN, UNSEEN) == (["d0", "d2", "d3", "d4", "d8", "d9", "d10"], ["d1", "d5", "d6", "d7", "d11"])
    assert same_bits(result.shared, without.shared)
    assert all(same_bits(result.personal(device), without.personal(device)) for device in SEEN)
    assert rows_of(result, seen=True) == without.devices.to_pylist()
    assert {**result.summary, "unseen": None} == {**without.summary, "unseen": None}
    assert [{**line, "seconds": 0} for line in result.rounds] == [
        {**line, "seconds": 0} for line in without.rounds
    ]


def test_a_method_that_counts_all_devices_counts_the_seen_ones() -> None:
    rounds = Training(method=SCAFFOLD, rounds=3, devices_per_round=3)
    plan = Plan(personalize=rounds, evaluate=Evaluation(unseen=SHARE, devices=4))
    whole, seen = (affine_task(devices={d: DEVICES[d] for d in some}) for some in (DEVICES, SEEN))

    one = pipeline(whole, Partition(whole.model()), plan)
    other = pipeline(seen, Partition(seen.model()), replace(plan, evaluate=Evaluation(devices=4)))

    assert same_bits(one.shared, other.shared)
    assert rows_of(one, seen=True) == other.devices.to_pylist()
    assert {row["device"] for row in rows_of(one, seen=False)} == set(UNSEEN)


def test_v_of_an_unseen_device_is_trained_from_its_start_by_plain_steps(result: Result) -> None:
    pretrained = pipeline(
        affine_task(devices=DEVICES), offset(affine_task()), replace(PLAN, personalize=None, finetune=None)
    )
    start = pretrained.model("d0").offset.detach()

    for device in UNSEEN:
        inputs, targets = DEVICES[device]["train"]
        generator = torch.Generator().manual_seed(derive_seed(1, "finetuned", 0, device))
        batches = iter(Shuffled(examples_of((inputs, targets)), 4, generator))
        slope, v = result.shared["slope.weight"], start.clone().requires_grad_()
        for _ in range(2 * -(-len(inputs) // 4)):
            x, y = next(batches)
            loss = 0.5 * ((x @ slope.T).squeeze(1) + v - y).square().mean()
            (gradient,) = torch.autograd.grad(loss, v)
            v = v.detach().add(gradient, alpha=-0.1).requires_grad_()

        assert result.personal(device)["offset"].item() == pytest.approx(v.item(), abs=1e-6)


def test_unseen_devices_have_a_row_for_every_stage_and_split(result: Result) -> None:
    rows = rows_of(result, seen=False)

    assert len(rows) == 3 * len(UNSEEN) * 2
    assert {row["device"] for row in rows} == set(UNSEEN)
    # Nothing was trained on them before: their personalized model is u with v at its start.
    for row in rows_of(result, seen=False, stage="personalized", split="test"):
        inputs, targets = DEVICES[row["device"]]["test"]
        start = torch.tensor(result.model("d0", "global").offset.item())
        predictions = (inputs @ result.shared["slope.weight"].T).squeeze(1) + start
        assert row["metric"] == pytest.approx(-(predictions - targets).abs().mean().item(), abs=1e-6)


@pytest.mark.parametrize(("direction", "sign"), [("up", 1), ("down", -1)])
def test_the_gap_is_positive_where_unseen_devices_are_worse(direction: Any, sign: int) -> None:
    metric = Metric(lambda predictions, targets: targets.mean().item(), direction)
    task = affine_task(devices=DEVICES, metrics={"mean": metric})

    result = pipeline(task, offset(task), replace(PLAN, pretrain=None, personalize=None))

    means = {device: (DEVICES[device]["test"][1].mean().item(), 4) for device in DEVICES}
    seen, unseen = (sum(means[device][0] for device in some) / len(some) for some in (SEEN, UNSEEN))
    for stage in ("pretrained", "finetuned"):
        numbers = result.summary["unseen"][stage]
        assert numbers["weighted_mean"] == pytest.approx(unseen)
        assert numbers["gap"] == pytest.approx(sign * (seen - unseen))
        assert numbers["devices"] == len(UNSEEN)
        assert result.summary["stages"][stage]["weighted_mean"] == pytest.approx(seen)


def test_unseen_devices_choose_their_model_too() -> None:
    devices = {name: own | {"validation": own["test"]} for name, own in DEVICES.items()}
    task = affine_task(devices=devices)

    result = pipeline(
        task, offset(task), replace(PLAN, evaluate=Evaluation(unseen=SHARE, choose="validation"))
    )

    by_stage = {
        stage: {row["device"]: row["metric"] for row in rows_of(result, stage=stage, split="test")}
        for stage in ("pretrained", "finetuned", "served")
    }
    for device in DEVICES:
        both = by_stage["pretrained"][device], by_stage["finetuned"][device]
        assert by_stage["served"][device] == max(both)
    assert set(result.summary["unseen"]) == {"pretrained", "personalized", "finetuned", "served"}


def test_a_whole_model_of_an_unseen_device_begins_at_the_pretrained_one() -> None:
    task = affine_task(devices=DEVICES)
    plan = replace(PLAN, finetune=Finetuning(personal_lr=0.0, batch_size=4))

    result = pipeline(task, full(task.model(), proximal=0.1), plan)

    start = result.model(UNSEEN[0], "global").state_dict()
    for device in UNSEEN:
        own = result.personal(device)
        assert same_bits({name.removeprefix("personal."): own[name] for name in own}, start)


@pytest.mark.slow
def test_early_stopping_does_not_look_at_unseen_devices_and_they_get_the_best_round() -> None:
    devices = {name: own | {"validation": own["test"]} for name, own in DEVICES.items()}
    method = FedAlt(shared_lr=0.6, batch_size=4)
    rounds = Training(method=method, rounds=12, devices_per_round=3, patience=1)
    plan = replace(PLAN, personalize=rounds, evaluate=Evaluation(unseen=SHARE, every=1))
    whole, seen = (affine_task(devices={d: devices[d] for d in some}) for some in (DEVICES, SEEN))
    told: list[tuple[int, int]] = []

    one = pipeline(whole, offset(whole), plan, watch=lambda _, done, total: told.append((done, total)))
    other = pipeline(seen, offset(seen), replace(plan, evaluate=Evaluation(every=1)))
    outcome = one.summary["early_stopping"]["personalized"]
    ended = replace(rounds, rounds=outcome["best_round"], patience=0)
    planned = pipeline(whole, offset(whole), replace(plan, personalize=ended))

    assert outcome["stopped_early"]
    assert 0 < outcome["best_round"] < outcome["rounds"]
    assert one.summary["early_stopping"] == other.summary["early_stopping"]
    assert same_bits(one.shared, other.shared)
    assert rows_of(one, seen=True) == other.devices.to_pylist()
    assert {row["device"] for row in rows_of(one, seen=False, stage="finetuned")} == set(UNSEEN)
    assert rows_of(one, seen=False) == rows_of(planned, seen=False)
    assert all(same_bits(one.personal(device), planned.personal(device)) for device in UNSEEN)
    assert told[-1] == (len(told), len(told))


class Killed(Exception):
    """Stands for a kill at a certain moment."""


@pytest.mark.slow
def test_onboarding_resumes_with_the_same_bits_after_a_kill_at_any_round(tmp_path: Path) -> None:
    task = affine_task(devices=DEVICES)
    run = partial(pipeline, task, offset(task), PLAN)
    run(out=tmp_path / "whole")
    total = 3 + 1 + 3 + 1 + 2 + 4
    for killed_at in range(total - 3, total + 1):
        folder = tmp_path / str(killed_at)

        def kill(_: Any, done: int, known: int, at: int = killed_at) -> None:
            assert known == total
            if done == at:
                raise Killed

        with pytest.raises(Killed):
            run(out=folder, watch=kill)
        assert not RunFolder(folder).is_finished
        run(out=folder, resume=True)

        for name in ("shared", "personal"):
            assert files_of(folder, name) == files_of(tmp_path / "whole", name)
        for name in ("devices.parquet", "summary.json"):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    stages = [(line["stage"], line["work"]) for line in RunFolder(tmp_path / "whole").onboarding()]
    assert stages == [
        ("pretrained", "evaluate"),
        ("personalized", "evaluate"),
        ("finetuned", "finetune"),
        ("finetuned", "evaluate"),
    ]


SMALL = ("d6", "d9")
"""An unseen and a seen device with too few rows to be selected, with rows of others on both sides."""


def texts() -> list[dict[str, Any]]:
    """Devices with words of their own, so that the vocabulary depends on who is in it."""
    return [
        {"device": device, "split": "test" if row % 3 == 2 else "train", "text": f"the {device} says {row}"}
        for device in DEVICES
        for row in range(6)
    ]


def numbers() -> list[dict[str, Any]]:
    """Devices whose numbers differ by device, so that means and deviations depend on who is in them."""
    generator = torch.Generator().manual_seed(3)
    return [
        {
            "device": device,
            "split": "test" if row % 3 == 2 else "train",
            "height": 3.0 * place + torch.randn((), generator=generator).item(),
            "width": torch.randn((), generator=generator).item(),
            "label": (place + row) % 3,
        }
        for place, device in enumerate(DEVICES)
        for row in range(2 if device in SMALL else 6)
    ]


def trained(folder: Path, rows: list[dict[str, Any]], **sections: Mapping[str, Any]) -> RunFolder:
    folder.mkdir()
    write(folder / "table.parquet", rows)
    rounds = {"rounds": 2, "devices_per_round": 3, "batch_size": 4}
    values = {
        "name": "law",
        "out": str(folder / "run"),
        "pretrain": rounds,
        "personalize": rounds,
        "finetune": {"epochs": 1},
        **sections,
    }
    values["task"] = {"data": str(folder / "table.parquet"), **sections["task"]}
    run = prepare(config_of(values), folder)
    finish(run)
    return run.folder


@pytest.mark.parametrize(
    ("rows", "task"),
    [
        (texts, {"kind": "text", "max_length": 4}),
        (numbers, {"kind": "tabular", "min_train_examples": 3, "min_test_examples": 1}),
    ],
)
def test_vocabulary_and_standardization_are_as_if_unseen_devices_were_not_in_the_table(
    tmp_path: Path, rows: Callable[[], list[dict[str, Any]]], task: dict[str, Any]
) -> None:
    seen = [row for row in rows() if row["device"] in SEEN]

    one = trained(tmp_path / "one", rows(), task=task, evaluate={"unseen": SHARE})
    other = trained(tmp_path / "other", seen, task=task)

    assert one.derived == other.derived
    assert files_of(one.path, "shared") == files_of(other.path, "shared")
    assert files_of(other.path, "personal").items() <= files_of(one.path, "personal").items()
    assert one.devices.to_pylist() == other.devices.to_pylist()
    small = SMALL if "min_train_examples" in task else ()
    assert {row["device"] for row in one.unseen.to_pylist()} == set(UNSEEN) - set(small)
    assert json.loads(one.summary_file.read_bytes())["stages"] == other.summary["stages"]
