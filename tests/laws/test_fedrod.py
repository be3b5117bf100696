"""FedRoD against its algorithm in plain torch, and the two heads of a device."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita import Evaluation, Finetuning, LocalRoD, Method, Plan, Result, Task, Training, pipeline
from partita.errors import ConfigError
from partita.models.heads import without_second_head
from partita.models.parts import named_partition
from partita.protocol import derive_seed
from partita.tasks.build import initial_model
from small import class_devices, class_task, normed_task, same_bits

ROUNDS, COHORT, STEPS, RATE, OWN_RATE = 3, 2, 2, 0.5, 0.3


def fedrod(**settings: Any) -> Method:
    counts = {"shared_steps": STEPS, "personal_steps": STEPS, "batch_size": 1000}
    return Method(local=LocalRoD, shared_lr=RATE, personal_lr=OWN_RATE, **(counts | settings))


def train(
    *, task: Task | None = None, finetune: Finetuning | None = None, unseen: float = 0.0, **options: Any
) -> Result:
    task = task or class_task()
    plan = Plan(
        personalize=Training(method=fedrod(), rounds=ROUNDS, devices_per_round=COHORT),
        finetune=finetune,
        evaluate=Evaluation(unseen=unseen),
    )
    return pipeline(task, named_partition(task.model(), "second_head"), plan, **options)


def balanced(scores: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """The balanced softmax loss as the paper writes it."""
    weighted = counts * scores.exp()
    return -(weighted.gather(1, labels[:, None])[:, 0] / weighted.sum(1)).log().mean()


def published() -> tuple[nn.Module, dict[str, nn.Linear]]:
    """The generic model and all personal heads after all rounds, with full batches."""
    model, heads = copy.deepcopy(initial_model(class_task(), seed=1)).double(), {}
    devices = class_devices()
    for t in range(ROUNDS):
        sampler = random.Random(derive_seed(1, "personalized", t, "cohort"))
        asked = [list(devices)[i] for i in sampler.sample(range(len(devices)), COHORT)]
        trained = []
        for device in asked:
            inputs, labels = devices[device]["train"][0].double(), devices[device]["train"][1]
            counts = torch.tensor([(labels == label).sum() for label in range(3)]).double()
            local = copy.deepcopy(model)
            for _ in range(STEPS):
                loss = balanced(local(inputs), labels, counts)
                gradients = torch.autograd.grad(loss, list(local.parameters()))
                for parameter, gradient in zip(local.parameters(), gradients, strict=True):
                    parameter.data -= RATE * gradient
            if device not in heads:
                heads[device] = nn.Linear(4, 3).double()
                nn.init.zeros_(heads[device].weight)
                nn.init.zeros_(heads[device].bias)
            own = heads[device]
            for _ in range(STEPS):
                features, generic = torch.tanh(local.body(inputs)).detach(), local(inputs).detach()
                loss = nn.functional.cross_entropy(generic + own(features), labels)
                gradients = torch.autograd.grad(loss, [own.weight, own.bias])
                for parameter, gradient in zip((own.weight, own.bias), gradients, strict=True):
                    parameter.data -= OWN_RATE * gradient
            trained.append((device, local))
        weights = torch.tensor([float(len(devices[device]["train"][1])) for device, _ in trained]).double()
        for name, parameter in model.named_parameters():
            each = torch.stack([local.get_parameter(name).data for _, local in trained])
            parameter.data = torch.tensordot(weights / weights.sum(), each, dims=1)
    return model, heads


def test_fedrod_is_its_algorithm() -> None:
    result, (generic, heads) = train(), published()

    for name, parameter in generic.named_parameters():
        assert result.shared[name].double().allclose(parameter.data, atol=1e-5)
    assert len(heads) > COHORT
    for device, splits in class_devices().items():
        own = result.personal(device)
        assert set(own) == {"head.second.layer.weight", "head.second.layer.bias"}
        inputs = splits["test"][0].double()
        scores = generic(inputs)
        if device in heads:
            assert own["head.second.layer.weight"].double().allclose(heads[device].weight.data, atol=1e-5)
            scores = scores + heads[device](torch.tanh(generic.body(inputs)))
        assert result.model(device)(splits["test"][0]).double().allclose(scores, atol=1e-4)


def test_nothing_flows_from_a_personal_head_into_the_shared_part() -> None:
    class Still(LocalRoD):
        def __call__(self, *arguments: Any) -> list[float]:
            losses = super().__call__(*arguments)
            model, partition = arguments[:2]
            for tensor in partition.of(model).personal.values():
                tensor.data.fill_(7.0)
            return losses

    task = class_task()
    results = []
    for local in (LocalRoD, Still):
        method = Method(local=local, shared_lr=RATE, personal_lr=OWN_RATE, batch_size=4)
        plan = Plan(personalize=Training(method=method, rounds=3, devices_per_round=4))
        results.append(pipeline(task, named_partition(task.model(), "second_head"), plan).shared)

    assert same_bits(*results)


def test_a_new_second_head_changes_no_bit_and_can_be_left_out() -> None:
    model = class_task().model()
    inputs = class_devices()["d0"]["test"][0]
    plain = model(inputs)
    both = named_partition(model, "second_head").partition.prepare(copy.deepcopy(model))

    assert both(inputs).equal(plain)
    both.get_submodule("head.second.layer").bias.data.fill_(5.0)
    assert both(inputs).allclose(plain + 5)
    with without_second_head(both, torch.tensor([1.0, 2.0, 3.0])):
        assert both(inputs).equal(plain + torch.tensor([1.0, 2.0, 3.0]))
    assert both(inputs).allclose(plain + 5)


def test_an_unseen_device_predicts_with_the_generic_head_before_it_is_fine_tuned() -> None:
    task = class_task(devices=class_devices(10))
    still = Finetuning(personal_lr=0.0, epochs=1)
    result = train(task=task, unseen=0.4, finetune=still)

    unseen = {row["device"] for row in result._record.measurements.to_pylist() if not row["seen"]}
    assert unseen
    for device in unseen:
        assert all(not tensor.any() for tensor in result.personal(device).values())


def test_workers_and_a_resumed_run_give_the_same_bits(tmp_path: Path) -> None:
    whole = train(out=tmp_path / "whole")
    parallel = train(out=tmp_path / "parallel", workers=2)

    def stop(line: Any, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path / "resumed", watch=stop)
    resumed = train(out=tmp_path / "resumed", resume=True)

    for other in (parallel, resumed):
        assert same_bits(other.shared, whole.shared)
        assert other.devices == whole.devices


def test_a_task_without_classes_is_refused() -> None:
    task = normed_task()
    plan = Plan(personalize=Training(method=fedrod(), rounds=1, devices_per_round=2))

    with pytest.raises(ConfigError, match="FedRoD needs a task whose targets are classes"):
        pipeline(task, named_partition(task.model(), "second_head"), plan)
