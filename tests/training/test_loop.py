"""The three stages: what each begins with, does and leaves behind."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from partita import (
    Averaging,
    CannotDo,
    Devices,
    Evaluation,
    FedAlt,
    FedAvg,
    Finetuning,
    Linear,
    Partition,
    Plan,
    Task,
    Training,
    full,
    pipeline,
)
from partita.errors import RunFailed
from partita.params import from_bytes
from partita.tasks.build import build_model
from partita.training.plan import Turn
from small import Affine, affine_devices, affine_task, float64_task, normed_task, same_bits, square_error


def plan(**changes: Any) -> Plan:
    stages = {
        "pretrain": Training(method=FedAvg(shared_lr=0.1, batch_size=4), rounds=4, devices_per_round=3),
        "personalize": Training(method=FedAlt(shared_lr=0.1, batch_size=4), rounds=3, devices_per_round=3),
        "finetune": Finetuning(personal_lr=0.1, epochs=2, batch_size=4),
    }
    return Plan(**(stages | changes))


def offset(task: Task) -> Partition:
    return Partition(task.model(), personal="offset")


def with_targets(value: float, *spoilt: str) -> Any:
    """The usual devices, some of them with `value` added to their training targets."""
    devices = affine_devices()
    for device in spoilt:
        inputs, targets = devices[device]["train"]
        devices[device]["train"] = inputs, targets + value
    return devices


def stage_rows(result: Any, stage: str) -> list[dict]:
    return [row for row in result.devices.to_pylist() if row["stage"] == stage]


def test_all_stages_are_in_the_table_with_their_model() -> None:
    task = affine_task()

    result = pipeline(task, offset(task), plan())

    rows = result.devices.to_pylist()
    assert len(rows) == 3 * 6 * 2
    assert {(row["stage"], row["model"]) for row in rows} == {
        ("pretrained", "global"),
        ("personalized", "personal"),
        ("finetuned", "personal"),
    }
    assert [row["examples"] for row in rows if row["split"] == "train"][:6] == [5, 6, 7, 8, 9, 10]
    assert list(result.summary["stages"]) == ["pretrained", "personalized", "finetuned"]


def test_personalization_begins_with_the_pretrained_model() -> None:
    task = affine_task()
    only_pretrained = pipeline(task, offset(task), plan(personalize=None, finetune=None))

    result = pipeline(
        task,
        offset(task),
        plan(
            personalize=Training(
                method=FedAlt(shared_lr=0.0, personal_lr=0.0), rounds=2, devices_per_round=2
            ),
            finetune=None,
        ),
    )

    assert same_bits(result.shared, only_pretrained.shared)
    assert same_bits(result.personal("d0"), only_pretrained.personal("d0"))
    assert result.personal("d0")["offset"].item() != 0.0
    before, after = (
        [(r["device"], r["split"], r["metric"]) for r in stage_rows(result, stage)]
        for stage in ("pretrained", "personalized")
    )
    assert before == after


def normed_plan(finetune: Finetuning | None) -> Plan:
    return Plan(
        pretrain=Training(method=FedAvg(shared_lr=0.1, batch_size=3), rounds=2, devices_per_round=2),
        personalize=Training(method=FedAlt(shared_lr=0.1, batch_size=3), rounds=2, devices_per_round=2),
        finetune=finetune,
    )


def test_finetuning_leaves_u_alone_and_moves_every_v() -> None:
    task = normed_task()
    partition = Partition(task.model(), personal="head.*", frozen="body.0.*")

    before = pipeline(task, partition, normed_plan(None))
    after = pipeline(task, partition, normed_plan(Finetuning(personal_lr=0.1, batch_size=3)))

    assert same_bits(before.shared, after.shared)
    assert all(not same_bits(before.personal(device), after.personal(device)) for device in task.devices)


def test_finetuning_uses_its_own_optimizer() -> None:
    # From offset 0, one step of Adam moves every v by the rate, whatever its gradient.
    task = affine_task()
    finetune = Finetuning(personal_lr=0.125, epochs=1, batch_size=100, optimizer=torch.optim.Adam)

    result = pipeline(task, offset(task), Plan(finetune=finetune))

    for device in task.devices:
        assert abs(result.personal(device)["offset"].item()) == pytest.approx(0.125, rel=1e-4)


def test_frozen_tensors_stay_through_every_stage(tmp_path: Path) -> None:
    task = normed_task()
    partition = Partition(task.model(), personal="head.2.*", frozen="body.*")

    result = pipeline(
        task, partition, normed_plan(Finetuning(personal_lr=0.1, batch_size=3)), out=tmp_path / "run"
    )

    whole = from_bytes((tmp_path / "run/shared/pretrained.safetensors").read_bytes())
    start, end = build_model(task, seed=1).state_dict(), result.model("d0").state_dict()
    assert whole.keys() == start.keys()
    for name in start:
        still = torch.equal(whole[name], start[name]) and torch.equal(end[name], start[name])
        assert still == name.startswith("body")


def test_stateless_devices_are_evaluated_and_finetuned_from_the_start() -> None:
    task = affine_task()
    method = FedAlt(shared_lr=0.0, personal_lr=0.2, stateful=False)
    stages = plan(
        pretrain=None, personalize=Training(method=method, rounds=3, devices_per_round=6), finetune=None
    )

    without = pipeline(task, offset(task), stages)
    finetuned = pipeline(task, offset(task), plan(**{**vars(stages), "finetune": plan().finetune}))

    assert [r["metric"] for r in stage_rows(without, "personalized")] == [
        r["metric"] for r in stage_rows(without, "pretrained")
    ]
    assert without.personal("d0")["offset"].item() == 0.0
    assert finetuned.personal("d0")["offset"].item() != 0.0


def test_a_device_that_fails_keeps_its_v_and_the_run_goes_on() -> None:
    task = affine_task(devices=with_targets(float("nan"), "d2"))
    lines: list[Any] = []

    result = pipeline(
        task,
        offset(task),
        Plan(personalize=Training(method=FedAlt(shared_lr=0.1), rounds=3, devices_per_round=6)),
        watch=lambda line, done, total: lines.append(line),
    )

    updates = [line for line in lines if line["work"] == "update"]
    assert all(set(line["failed"]) == {"d2"} and len(line["heard"]) == 5 for line in updates)
    assert result.personal("d2")["offset"].item() == 0.0
    assert result.personal("d1")["offset"].item() != 0.0
    (row,) = [r for r in stage_rows(result, "personalized") if (r["device"], r["split"]) == ("d2", "train")]
    assert row["loss"] is None
    assert row["reason"] == "training failed: The loss became nan in step 1."


def test_a_device_whose_change_is_refused_keeps_its_v() -> None:
    # Finite in float64, but beyond float32: the device has filed a new v already when the server refuses it.
    task = float64_task(d2=1e40)
    lines: list[Any] = []

    result = pipeline(
        task,
        offset(task),
        Plan(personalize=Training(method=FedAlt(shared_lr=0.1), rounds=2, devices_per_round=6)),
        watch=lambda line, done, total: lines.append(line),
    )

    assert "on device 'd2' must be finite and at most 3.4e+38" in lines[1]["failed"]["d2"]
    assert result.personal("d2")["offset"].item() == 0.0


def test_a_stage_in_which_nobody_ever_replies_fails_the_run() -> None:
    task = affine_task(devices=with_targets(float("nan"), *affine_devices()))

    with pytest.raises(RunFailed, match="No device replied in any round of `pretrained`.*nan"):
        pipeline(task, offset(task), replace(plan(), max_failed=1.0))


def test_a_failed_run_does_not_become_a_success_when_resumed(tmp_path: Path) -> None:
    task = affine_task(devices=with_targets(float("nan"), *affine_devices()))

    for resume in (False, True, True):
        with pytest.raises(RunFailed):
            pipeline(task, offset(task), plan(), out=tmp_path / "run", resume=resume)


def test_a_run_is_given_up_after_some_rounds_without_a_reply() -> None:
    task = affine_task(devices=with_targets(float("nan"), *affine_devices()))
    lines: list[Any] = []
    stages = plan(pretrain=Training(method=FedAvg(shared_lr=0.1), rounds=50, devices_per_round=3))

    with pytest.raises(RunFailed, match="12 of 12 in the last 4 rounds.*The loss became nan.*max_grad_norm"):
        pipeline(task, offset(task), stages, watch=lambda line, *_: lines.append(line))

    # The fourth round, after which 12 of the 20 visits that decide have failed, is not counted.
    assert len(lines) == 3


def test_the_schedule_and_the_servers_optimizer_are_used() -> None:
    task = normed_task()
    method = FedAvg(shared_lr=0.1, batch_size=3)
    still = Averaging(lr=0.0)
    schedule = Linear(warmup=0.5)
    lines: list[Any] = []

    result = pipeline(
        task,
        Partition(task.model()),
        Plan(
            pretrain=Training(method=method, rounds=4, devices_per_round=2, schedule=schedule, server=still)
        ),
        watch=lambda line, *_: lines.append(line),
    )

    assert [line["shared_lr"] for line in lines[:4]] == pytest.approx([0.05, 0.1, 0.1, 0.05])
    start = build_model(task, seed=1).state_dict()
    moved = {name for name in start if not torch.equal(start[name], result.shared[name])}
    # A server rate of 0 holds the parameters; buffers take their mean past the optimizer.
    assert moved == {name for name in start if "running" in name or "tracked" in name}


def test_threads_outside_do_not_change_the_bits() -> None:
    def orthogonal() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 300), nn.Linear(300, 300), nn.Linear(300, 1), nn.Flatten(0))
        nn.init.orthogonal_(model[1].weight)
        return model

    task = affine_task(model=orthogonal)
    partition = Partition(task.model(), personal="2.*", frozen="1.*")
    stages = Plan(personalize=Training(method=FedAlt(shared_lr=0.01), rounds=1, devices_per_round=2))
    threads = torch.get_num_threads()

    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(pipeline(task, partition, stages))
    torch.set_num_threads(threads)

    assert same_bits(results[0].shared, results[1].shared)


def test_a_task_that_hands_out_one_model_is_not_trained_behind_its_back() -> None:
    net = Affine()
    task = affine_task(model=lambda: net)

    first, second = (pipeline(task, Partition(net, personal="offset"), plan()) for _ in range(2))

    assert same_bits(first.shared, second.shared)
    assert net.offset.item() == 0.0


def test_tied_tensors_can_be_frozen_together() -> None:
    class Tied(Affine):
        def __init__(self) -> None:
            super().__init__()
            self.again = self.slope
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) * self.scale

    task = affine_task(model=Tied)

    result = pipeline(task, Partition(Tied(), personal="offset", frozen=["slope.*", "again.*"]), plan())

    assert list(result.shared) == ["scale"]


def test_an_unknown_device_has_no_model() -> None:
    task = affine_task()
    result = pipeline(task, offset(task), plan())

    with pytest.raises(ValueError, match="There is no device 'd33'. Near ids: d3"):
        result.model("d33")


def test_full_hands_out_the_devices_own_model() -> None:
    task = affine_task()
    result = pipeline(task, full(task.model()), plan())

    assert isinstance(result.model("d0"), Affine)


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"loss": lambda model, batch: 3.0}, TypeError, "`loss` must return a tensor, got float"),
        (
            {"loss": lambda model, batch: model(batch[0])},
            ValueError,
            r"mean over a batch, got the shape \(5,\)",
        ),
        ({"loss": lambda m, b: square_error(m, b).detach()}, ValueError, "`loss` must have a gradient"),
        (
            {"predict": lambda model, batch: model(batch[0])},
            TypeError,
            "`predict` must return predictions and",
        ),
        ({"devices": {"a": (1, 2)}}, TypeError, "must be a mapping of splits.*got tuple on device 'a'"),
        ({"devices": {"a": {"train": 3}}}, TypeError, "A split must be a tuple"),
    ],
)
def test_a_task_that_cannot_work_is_refused_before_its_folder_is_made(
    changes: dict, kind: type, words: str, tmp_path: Path
) -> None:
    task = affine_task(**changes)

    with pytest.raises(kind, match=words):
        pipeline(task, offset(task), Plan(evaluate=Evaluation()), out=tmp_path / "run")

    assert not (tmp_path / "run").exists()


def test_a_first_device_that_cannot_is_only_its_own_failure() -> None:
    devices = affine_devices()

    def load(device: str) -> Any:
        if device == "d0":
            raise CannotDo("Asleep.")
        return devices[device]

    task = affine_task(devices=Devices(devices, load))
    lines: list[Any] = []

    pipeline(task, offset(task), plan(), watch=lambda line, *_: lines.append(line))

    assert {device for line in lines for device in line["failed"]} == {"d0"}


def test_a_backbone_that_only_adapters_make_trainable_passes_the_look_before_the_run() -> None:
    def frozen() -> nn.Module:
        return Affine().requires_grad_(False)

    def adapt(model: nn.Module) -> nn.Module:
        model.register_parameter("offset", nn.Parameter(torch.zeros(1)))
        return model

    task = affine_task(model=frozen)
    partition = Partition(frozen(), personal="offset", prepare=adapt)

    result = pipeline(task, partition, Plan(personalize=plan().personalize))

    assert any(result.personal(device)["offset"].item() for device in task.devices)


@pytest.mark.parametrize("copies", [False, True])
def test_a_frozen_tensor_that_prepare_renames_is_frozen_before_if_it_can_be_found(copies: bool) -> None:
    task = affine_task()

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.ones(1))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return values * self.by

    partition = Partition(
        task.model(),
        personal="0.offset",
        frozen="0.slope.*",
        prepare=lambda plain: nn.Sequential(copy.deepcopy(plain) if copies else plain, Scale()),
    )

    if copies:
        with pytest.raises(ValueError, match="`0.slope.weight` is frozen and does not exist before"):
            pipeline(task, partition, plan())
    else:
        slope = pipeline(task, partition, plan()).model("d0").state_dict()["0.slope.weight"]
        assert torch.equal(slope, build_model(task, seed=1).state_dict()["slope.weight"])


def test_batches_may_be_dicts() -> None:
    devices = {
        device: {name: {"x": split[0].numpy(), "y": split[1]} for name, split in data.items()}
        for device, data in affine_devices().items()
    }
    task = affine_task(
        devices=devices,
        loss=lambda model, batch: square_error(model, (batch["x"], batch["y"])),
        predict=lambda model, batch: (model(batch["x"]), batch["y"]),
    )

    by_name, by_place = (pipeline(t, offset(t), plan()) for t in (task, affine_task()))

    assert same_bits(by_name.shared, by_place.shared)


def test_a_sample_of_devices_is_evaluated_and_finetuned() -> None:
    task = affine_task()

    result = pipeline(task, offset(task), plan(evaluate=Evaluation(devices=2)))

    evaluated = {row["device"] for row in result.devices.to_pylist()}
    assert len(evaluated) == 2
    assert all(numbers["devices"] == 2 for numbers in result.summary["stages"].values())


def test_evaluations_while_training_are_in_the_curves_and_change_nothing() -> None:
    task = affine_task()
    lines: list[Any] = []

    often = pipeline(
        task, offset(task), plan(evaluate=Evaluation(every=2)), watch=lambda line, *_: lines.append(line)
    )
    never = pipeline(task, offset(task), plan())

    assert [(r["stage"], r["round"]) for r in lines if r["work"] == "evaluate"] == [
        ("pretrained", 2),
        ("pretrained", 4),
        ("personalized", 2),
        ("personalized", 3),
        ("finetuned", 1),
    ]
    assert all(r["metric"] < 0 < r["weight"] for r in lines if r["work"] == "evaluate")
    assert often.devices.equals(never.devices)
    assert same_bits(often.shared, never.shared)


def test_a_fixed_sample_is_evaluated_while_training_and_all_devices_at_the_end() -> None:
    task, lines = affine_task(), list[Any]()

    sampled = pipeline(
        task,
        offset(task),
        plan(evaluate=Evaluation(devices=5, every=1, sample=2)),
        watch=lambda line, *_: lines.append(line),
    )
    never = pipeline(task, offset(task), plan(evaluate=Evaluation(devices=5)))

    evaluations = [line for line in lines if line["work"] == "evaluate"]
    during = [line["asked"] for line in evaluations if not line["final"]]
    assert len(during) == 5
    assert all(asked == during[0] for asked in during)
    assert len(during[0]) == 2
    assert all(set(during[0]) < set(line["asked"]) for line in evaluations if line["final"])
    # Counted against the same devices' pretrained metrics: with an unchanged model, all would be the same.
    assert {sum(line[key] for key in ("helped", "hurt", "same")) for line in evaluations[4:6]} == {2}
    assert sampled.devices.equals(never.devices)
    assert same_bits(sampled.shared, never.shared)


def test_the_sample_depends_on_the_ids_alone() -> None:
    devices = [f"d{number}" for number in range(40)]

    def sample(devices: list[str], size: int) -> set[str]:
        return {devices[at] for at in Evaluation(sample=size).sampled(devices)}

    assert len(sample(devices, 6)) == 6
    assert sample(devices, 6) == sample(devices[::-1], 6)
    assert sample(devices, 6) < sample(devices, 12)
    # Of fewer devices, those that remain are in it.
    assert sample(devices, 6) & set(devices[:20]) <= sample(devices[:20], 6)


def test_unseen_devices_are_named_where_too_many_devices_are_wanted() -> None:
    devices = [f"d{number}" for number in range(12)]
    number = r"the number of devices in training, 7 \(5 of 12 are unseen, `evaluate.unseen`\)"

    many = Training(method=FedAvg(), rounds=1, devices_per_round=10)

    for own in (
        plan(pretrain=many, evaluate=Evaluation(unseen=0.3)),
        plan(evaluate=Evaluation(unseen=0.3, devices=10)),
    ):
        with pytest.raises(ValueError, match=f"must be at most {number}, got 10."):
            own.check(devices)


def test_a_sample_of_more_devices_than_are_evaluated_is_refused() -> None:
    with pytest.raises(
        ValueError, match="`evaluate.sample` must be at most the number of evaluated devices, 4"
    ):
        plan(evaluate=Evaluation(devices=4, sample=5)).check([*"abcdef"])
    with pytest.raises(ValueError, match="`sample` must be 'all' or a number, at least 1, got 0"):
        Evaluation(sample=0)


def test_turns_cover_blocks_of_devices() -> None:
    turns = plan(pretrain=None, personalize=None).turns([f"d{n}" for n in range(250)])

    blocks = [range(100), range(100, 200), range(200, 250)]
    assert [turn.block for turn in turns] == blocks * 3
    assert turns[3] == Turn(turns[3].stage, "finetune", 0, range(100), number=3)


def test_full_personalization_runs_with_every_method() -> None:
    # One device, full batch, one step each at rate 1/2, lambda = 1, w_0 = w_i = 0 and y = 1:
    #   v <- 0 - 1/2 ((0 - 1) + 1 (0 - 0)) = 1/2 for the offset, then u <- 0 - 1/2 (1 (0 - 1/2)) = 1/4.
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = nn.Parameter(torch.zeros(1))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.value.expand(len(inputs))

    data = torch.zeros(2, 1), torch.ones(2)
    task = affine_task(model=Constant, devices={"d": {"train": data, "test": data}})

    result = pipeline(
        task,
        full(Constant(), proximal=1.0),
        Plan(personalize=Training(method=FedAlt(shared_lr=0.5), rounds=1, devices_per_round=1)),
    )

    assert result.personal("d")["personal.value"].item() == 0.5
    assert result.shared["shared.value"].item() == 0.25
    assert result.model("d")(torch.zeros(1, 1)).item() == 0.5


def test_the_result_gives_each_devices_whole_model() -> None:
    task = affine_task()
    result = pipeline(task, offset(task), plan())

    model = result.model("d3")

    assert torch.equal(model.get_parameter("offset"), result.personal("d3")["offset"])
    assert torch.equal(model.get_parameter("slope.weight"), result.shared["slope.weight"])
    assert not model.training


def test_more_devices_a_round_than_there_are_is_an_error() -> None:
    task = affine_task()
    stages = plan(pretrain=Training(method=FedAvg(shared_lr=0.1), rounds=1, devices_per_round=7))

    with pytest.raises(ValueError, match="at most the number of devices, 6, got 7"):
        pipeline(task, offset(task), stages)


def test_a_folder_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    task = affine_task()

    with pytest.raises(FileExistsError, match="resume=True"):
        pipeline(task, offset(task), plan(), out=tmp_path)


def test_a_watcher_is_told_how_many_rounds_there_are_and_who_was_hurt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.training.plan.BLOCK", 4)
    task, lines = affine_task(), []

    result = pipeline(
        task,
        offset(task),
        plan(evaluate=Evaluation(every=2)),
        out=tmp_path / "run",
        watch=lambda line, *_: lines.append(line),
    )

    assert {(line["stage"], line["rounds"]) for line in lines} == {
        *(("pretrained", 4), ("personalized", 3), ("finetuned", 2)),
    }
    counted = [line for line in lines if "hurt" in line]
    assert [(line["stage"], line["round"]) for line in counted] == [
        *(("personalized", 2), ("personalized", 2), ("personalized", 3), ("personalized", 3)),
        *(("finetuned", 2), ("finetuned", 2)),
    ]
    for stage in ("personalized", "finetuned"):
        final = [line for line in counted if line["stage"] == stage and line["final"]]
        for key in ("helped", "hurt", "same"):
            assert sum(line[key] for line in final) == result.summary["stages"][stage][key]
    assert all(sum(line[key] for key in ("helped", "hurt", "same")) == len(line["heard"]) for line in counted)
    # The file has nothing of this.
    written = [json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    more = {"rounds", "headline", "helped", "hurt", "same"}
    assert written == [{key: value for key, value in line.items() if key not in more} for line in lines]


def test_a_resumed_run_knows_the_pretrained_model_that_others_are_compared_with(tmp_path: Path) -> None:
    task, lines, again = affine_task(), [], []

    def stop(line: Any, done: int, total: int) -> None:
        lines.append(line)
        if len(lines) == 7:  # After pretraining and two rounds of personalizing.
            raise InterruptedError

    with pytest.raises(InterruptedError):
        pipeline(task, offset(task), plan(), out=tmp_path / "run", watch=stop)
    settings = {"out": tmp_path / "run", "resume": True, "watch": lambda line, *_: again.append(line)}
    result = pipeline(task, offset(task), plan(), **settings)

    told = {line["stage"]: line for line in again if "hurt" in line}
    assert list(told) == ["personalized", "finetuned"]
    for stage, line in told.items():
        assert line["hurt"] == result.summary["stages"][stage]["hurt"]
