"""Parameters that a model holds fixed are frozen in every stage: neither trained nor sent."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita import FedAlt, FedAvg, Finetuning, Partition, Plan, Training, full, pipeline
from partita.api.result import Result
from partita.methods import registry
from partita.tasks.build import build_model
from partita.training.costs import cost_model_of
from small import affine_task, same_bits


class LowRank(nn.Module):
    """A linear layer with a low-rank update, as peft adds it: the base is fixed, B starts at zero."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base_layer(inputs) + self.lora_B(self.lora_A(inputs))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 64)
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.body(inputs)))).squeeze(1)


def with_lora(model: nn.Module) -> nn.Module:
    model.requires_grad_(False)
    model.body = LowRank(model.get_submodule("body"))
    return model


def lora() -> nn.Module:
    return with_lora(Plain())


BASE = {"norm.weight", "norm.bias", "head.weight", "head.bias"}
FROZEN = BASE | {"body.base_layer.weight", "body.base_layer.bias"}
LORA = {"lora_A": 3 * 2, "lora_B": 2 * 64}
BUFFERS = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
ROUNDS = {"rounds": 2, "devices_per_round": 2}


def plan(*, pretrain: int = 2) -> Plan:
    return Plan(
        pretrain=Training(method=FedAvg(shared_lr=0.1, batch_size=3), **{**ROUNDS, "rounds": pretrain}),
        personalize=Training(method=FedAlt(shared_lr=0.1, batch_size=3), **ROUNDS),
        finetune=Finetuning(personal_lr=0.1, batch_size=3, epochs=1),
    )


def task(model: Callable[[], nn.Module]) -> Any:
    devices = affine_task().devices
    return affine_task(model=model, devices={name: devices[name] for name in ("d0", "d1", "d3", "d4")})


def sent(result: Result, stage: str) -> set[int]:
    lines = [line for line in result.rounds if (line["stage"], line["work"]) == (stage, "update")]
    return {line["bytes"]["down"] // len(line["asked"]) for line in lines}


def test_what_the_builder_fixed_is_frozen_and_never_buffers() -> None:
    partition = Partition(lora(), personal="*.lora_B.*")

    assert set(partition.names("frozen")) == FROZEN
    assert set(partition.names("personal")) == {"body.lora_B.weight"}
    assert set(partition.names("shared")) == {"body.lora_A.weight", *BUFFERS}


def test_a_round_with_one_lora_matrix_personal_sends_the_other_one_alone() -> None:
    result = pipeline(task(lora), Partition(lora(), personal="*.lora_B.*"), plan())

    # A's 6 parameters, and the BatchNorm's statistics: 128 floats and an int64.
    buffers = 128 * 4 + 8
    assert sent(result, "personalized") == {4 * LORA["lora_A"] + buffers}
    assert sent(result, "pretrained") == {4 * (LORA["lora_A"] + LORA["lora_B"]) + buffers}


@pytest.mark.parametrize("device", ["d0", "d4"])
def test_what_the_builder_fixed_stays_bit_for_bit_in_every_stage(device: str) -> None:
    result = pipeline(task(lora), Partition(lora(), personal="*.lora_B.*"), plan())

    start = build_model(task(lora), seed=1).state_dict()
    for which in ("global", "personal"):
        end = result.model(device, which).state_dict()
        assert {name for name in start if torch.equal(start[name], end[name])} == FROZEN


def test_a_fixed_parameter_is_frozen_as_a_pattern_freezes_it() -> None:
    def free() -> nn.Module:
        return lora().requires_grad_(True)

    fixed = pipeline(task(lora), Partition(lora(), personal="*.lora_B.*"), plan())
    named = pipeline(task(free), Partition(free(), personal="*.lora_B.*", frozen=sorted(FROZEN)), plan())

    assert same_bits(fixed.shared, named.shared)
    assert all(same_bits(fixed.personal(device), named.personal(device)) for device in ("d0", "d1", "d3"))


@pytest.mark.parametrize(
    ("selections", "part"),
    [
        ({"personal": ["*.lora_B.*", "head.*"]}, "personal"),
        ({"personal": "*.lora_B.*", "shared": ["*.lora_A.*", "head.*", "norm.[rn]*"]}, "shared"),
    ],
)
def test_a_pattern_that_names_a_fixed_parameter_wins_and_trains_it(selections: Any, part: Any) -> None:
    partition = Partition(lora(), **selections)

    result = pipeline(task(lora), partition, plan())

    assert {"head.weight", "head.bias"} <= set(partition.names(part))
    start = build_model(task(lora), seed=1).state_dict()
    for which in ("global", "personal"):
        assert not torch.equal(result.model("d4", which).state_dict()["head.weight"], start["head.weight"])


def test_a_pattern_in_frozen_may_name_what_is_fixed_already() -> None:
    assert set(Partition(lora(), frozen=["head.*"]).names("frozen")) == FROZEN


def test_the_rest_is_what_no_selection_names_in_python_as_in_a_config() -> None:
    partition = Partition(
        lora().requires_grad_(True), personal="*.lora_B.*", shared="*.lora_A.*", frozen="rest"
    )

    assert set(partition.names("frozen")) == FROZEN | BUFFERS
    # The rest is frozen by a setting, so in pretraining too.
    assert partition.frozen_before.always == FROZEN | BUFFERS


def test_what_only_prepare_fixes_is_pretrained_and_frozen_from_then_on() -> None:
    partition = Partition(Plain(), personal="*.lora_B.*", prepare=with_lora)

    result = pipeline(task(Plain), partition, plan())

    start, after = build_model(task(Plain), seed=1).state_dict(), result.model("d0", "global").state_dict()
    assert {name for name in start if torch.equal(start[name], after[name])} == set()
    # All of the plain model is sent: 3 * 64 + 64, two times 64, 64 + 1 parameters, and the statistics.
    assert sent(result, "pretrained") == {4 * (3 * 64 + 64 + 2 * 64 + 65) + 128 * 4 + 8}
    assert sent(result, "personalized") == {4 * LORA["lora_A"] + 128 * 4 + 8}
    for device in ("d0", "d4"):
        own = result.model(device).state_dict()
        assert torch.equal(own["body.base_layer.weight"], after["body.weight"])
        assert all(torch.equal(own[name], after[name]) for name in BASE)


def test_full_keeps_one_frozen_part_and_trains_what_is_not_frozen() -> None:
    personalization = full(lora(), proximal=0.5)
    partition = personalization.partition

    assert set(partition.names("frozen")) == {f"shared.{name}" for name in FROZEN}
    assert partition.count("personal") == partition.count("shared") == sum(LORA.values())
    result = pipeline(task(lora), personalization, plan())
    start, end = build_model(task(lora), seed=1).state_dict(), result.model("d0").state_dict()
    assert {name for name in start if torch.equal(start[name], end[name])} == FROZEN


def test_full_with_a_frozen_batchnorm_leaves_its_statistics() -> None:
    personalization = full(Plain(), frozen=["norm.*"])

    result = pipeline(task(Plain), personalization, plan())

    start, end = build_model(task(Plain), seed=1).state_dict(), result.model("d0").state_dict()
    still = {name for name in start if torch.equal(start[name], end[name])}
    assert still == BUFFERS | {"norm.weight", "norm.bias"}


def test_costs_count_fixed_parameters_as_frozen_and_leave_the_model_as_it_was() -> None:
    costs = cost_model_of(task(lora), seed=1)
    local = registry.find("fedavg").update
    flags = {name: p.requires_grad for name, p in costs.model.named_parameters()}

    first = [costs.costs(each, local) for each in (full(costs.model), full(costs.model))]
    frozen = Partition(costs.model, frozen=["*.lora_A.*"])

    assert first[0] == first[1]
    assert first[0]["frozen"] == 3 * 64 + 64 + 2 * 64 + 65
    assert {name: p.requires_grad for name, p in costs.model.named_parameters()} == flags
    assert frozen.count("shared") == LORA["lora_B"]


def test_a_model_that_is_all_fixed_cannot_be_pretrained() -> None:
    def fixed() -> nn.Module:
        return Plain().requires_grad_(False)

    partition = Partition(
        fixed(), personal="*.lora_B.*", prepare=lambda model: copy.deepcopy(with_lora(model))
    )

    with pytest.raises(ValueError, match="Pretraining would train nothing: every parameter is frozen"):
        pipeline(task(fixed), partition, plan())
    result = pipeline(task(fixed), partition, plan(pretrain=0))
    assert result.personal("d0")["body.lora_B.weight"].any()
