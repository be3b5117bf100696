"""Every model trains with every partition under FedAlt and FedSim; personal parts may differ in size."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from marks import slow_but
from partita import (
    Adapters,
    Additive,
    FedAlt,
    FedAvg,
    FedSim,
    Finetuning,
    Metric,
    Mixture,
    NextWordTransformer,
    Partition,
    Personalization,
    Plan,
    Regularization,
    ResNet,
    SpeechTransformer,
    SplitInput,
    Task,
    Training,
    accuracy,
    adapters,
    full,
    pipeline,
    run,
)
from partita.device.roles import build_roles
from partita.device.store import MemoryStore
from partita.device.visit import Visitor
from partita.errors import ConfigError
from partita.models.convnet import ConvNet
from partita.models.parts import named_partition, partition_names
from partita.params import from_bytes
from partita.protocol import Evaluate, Order, Reply, Stage, key_of
from partita.runs.memory import MemoryJournal
from partita.tasks.build import build_model
from partita.training.stages import Stages
from small import same_bits


def classify(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def fit(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]).squeeze(1) - batch[1]).square().mean()


def next_word(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def transcribe(model: nn.Module, batch: Any) -> Tensor:
    sound, lengths, text, text_lengths = batch
    scores, frames = model(sound, lengths)
    return nn.functional.ctc_loss(scores.transpose(0, 1), text, frames, text_lengths)


def loudest(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    sound, lengths, text, _ = batch
    return model(sound, lengths)[0][:, 0], text[:, 0]


def last_word(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    return model(batch[0])[:, -1], batch[1][:, -1]


def far(predictions: Tensor, targets: Tensor) -> float:
    return (predictions.squeeze(1) - targets).abs().mean().item()


def images(seed: int, side: int = 8) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, 1, side, side, generator=generator), torch.randint(4, (6,), generator=generator)


def sentences(seed: int) -> tuple[Tensor, ...]:
    words = torch.randint(20, (6, 6), generator=torch.Generator().manual_seed(seed))
    return words[:, :-1], words[:, 1:]


def utterances(seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(1, 7, (6, 3), generator=generator)
    sound = torch.randn(6, 30, 5, generator=generator)
    return sound, torch.tensor([30, 28, 26, 30, 30, 29]), text, torch.full((6,), 3)


def numbers(seed: int) -> tuple[Tensor, ...]:
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
    return inputs, inputs.sum(1) + seed


def kinds(seed: int) -> tuple[Tensor, ...]:
    inputs, sums = numbers(seed)
    return inputs, (sums > seed).long()


def task_of(model: Callable[[], nn.Module], loss: Any, data: Callable[[int], Any], **others: Any) -> Task:
    devices = {f"d{n}": {"train": data(n), "test": data(100 + n)} for n in range(4)}
    settings = {"metrics": {"accuracy": accuracy}} | others
    return Task(model=model, loss=loss, devices=devices, **settings)


TASKS = {
    "convnet": lambda: task_of(lambda: ConvNet(classes=4, width=4), classify, images),
    "resnet": lambda: task_of(lambda: ResNet(depth=10, classes=4, width=0.0625), classify, images),
    "resnet50": lambda: task_of(lambda: ResNet(depth=50, classes=4, width=0.0625), classify, images),
    "transformer": lambda: task_of(
        lambda: NextWordTransformer(vocabulary_size=20, max_length=5, dim=8, layers=2, heads=2, hidden=16),
        next_word,
        sentences,
        predict=last_word,
    ),
    "speech": lambda: task_of(
        lambda: SpeechTransformer(features=5, outputs=7, dim=8, layers=2, heads=2, hidden=16),
        transcribe,
        utterances,
        predict=loudest,
    ),
    "additive": lambda: task_of(
        lambda: Additive(nn.Linear(4, 1), nn.Linear(4, 1)), fit, numbers, metrics={"far": Metric(far, "down")}
    ),
    "mixture": lambda: task_of(lambda: Mixture(nn.Linear(4, 2), nn.Linear(4, 2)), classify, kinds),
    "split input": lambda: task_of(
        lambda: SplitInput(nn.Linear(3, 4), nn.Linear(1, 2), nn.Linear(6, 2), shared_features=3),
        classify,
        kinds,
    ),
}
LARGE = "resnet50"
REPEATED = ("input", "output", "none")
"""Partitions that slow tests alone try with every model: one part of it is personal, as with `head`, or none."""
CASES = [
    pytest.param(
        kind, name, marks=[pytest.mark.slow] if kind == LARGE or name in REPEATED else [], id=f"{kind}-{name}"
    )
    for kind, task in TASKS.items()
    for name in partition_names(task().model())
]


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("method", slow_but([FedAlt, FedSim], FedAlt))
def test_every_model_trains_with_every_partition(kind: str, name: str, method: Any) -> None:
    task = TASKS[kind]()
    partition = named_partition(
        task.model(), name, regularization=Regularization(dropout=0.1), untie=name == "head"
    )

    result = run(task, partition, method(shared_lr=0.05, batch_size=6), rounds=2, devices_per_round=4)

    before = partition.partition.of(build_model(task, partition, seed=1))
    assert not same_bits(result.shared, before.shared)
    assert result.summary["stages"]["personalized"]["devices"] == 4
    personal = [result.personal(f"d{number}") for number in range(4)]
    if name == "none":
        assert personal == [{}] * 4
    else:
        assert not any(same_bits(own, before.personal) for own in personal)
        assert not same_bits(personal[0], personal[1])


def test_full_is_the_same_formulation_fedalt_on_it_is_a_proximal_step() -> None:
    # One example a device, y = 3, from v = u = 0 and lambda = 1/2, each step of size 1/10:
    #   v <- 0 - 1/10 (-(3 - 0) + 1/2 (0 - 0)) = 3/10
    #   u <- 0 - 1/10 (1/2 (0 - 3/10))         = 3/200
    class Bias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = nn.Parameter(torch.zeros(1))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.value.expand(len(inputs))

    data = torch.zeros(1, 1), torch.tensor([3.0])
    task = Task(
        model=Bias,
        loss=lambda model, batch: 0.5 * (model(batch[0]) - batch[1]).square().mean(),
        metrics={"far": lambda predicted, targets: (predicted - targets).abs().mean()},
        devices={"a": {"train": data, "test": data}},
    )

    result = run(task, full(Bias(), proximal=0.5), FedAlt(shared_lr=0.1), rounds=1)

    assert result.personal("a")["personal.value"].item() == pytest.approx(0.3)
    assert result.shared["shared.value"].item() == pytest.approx(0.015)


WIDTHS = {"d0": 1, "d1": 3, "d2": 1, "d3": 2}
PLAN = Plan(
    pretrain=Training(method=FedAvg(shared_lr=0.05, batch_size=3), rounds=1, devices_per_round=2),
    personalize=Training(method=FedAlt(shared_lr=0.05, batch_size=3), rounds=2, devices_per_round=2),
    finetune=Finetuning(personal_lr=0.05, epochs=1),
)


def by_width(task: Task) -> Personalization:
    where = Adapters(after=["blocks.*.linear2"])
    return adapters(task.model(), where, width=WIDTHS.__getitem__)


def test_personal_parts_may_differ_in_size(tmp_path: Path) -> None:
    task = TASKS["transformer"]()

    result = pipeline(task, by_width(task), PLAN, out=tmp_path / "run")

    for device, width in WIDTHS.items():
        personal = result.personal(device)
        assert personal["blocks.0.linear2.adapter.down.weight"].shape == (width, 8)
        stored = from_bytes((tmp_path / "run/personal" / f"{key_of(device)}.safetensors").read_bytes())
        assert same_bits(personal, stored)
        assert same_bits(
            {name: tensor for name, tensor in result.model(device).state_dict().items() if name in personal},
            personal,
        )
    assert result.summary["stages"]["finetuned"]["devices"] == 4


def test_devices_as_wide_begin_with_one_draw_and_others_with_another() -> None:
    task = TASKS["transformer"]()
    method = FedAlt(shared_lr=0.05, personal_epochs=0)
    result = run(task, by_width(task), method, rounds=1, devices_per_round=1)

    starts = {device: result.personal(device) for device in WIDTHS}

    assert same_bits(starts["d0"], starts["d2"])
    assert {
        device: len(start["blocks.0.linear2.adapter.down.bias"]) for device, start in starts.items()
    } == WIDTHS


def test_a_width_for_each_device_that_is_the_same_for_all_is_one_width() -> None:
    task = TASKS["transformer"]()
    where = Adapters(after=["blocks.*.linear2"])

    one = pipeline(task, adapters(task.model(), where, width=3), PLAN)
    each = pipeline(task, adapters(task.model(), where, width=lambda _: 3), PLAN)

    assert same_bits(one.shared, each.shared)
    assert all(same_bits(one.personal(device), each.personal(device)) for device in WIDTHS)


@pytest.mark.slow
def test_runs_with_differing_sizes_resume_with_the_same_bits(tmp_path: Path) -> None:
    task = TASKS["transformer"]()
    whole = pipeline(task, by_width(task), PLAN)

    class Stopped(Exception):
        pass

    def stop(line: Any, done: int, _: int) -> None:
        if line["stage"] == "personalized" and line["work"] == "update":
            raise Stopped

    with pytest.raises(Stopped):
        pipeline(task, by_width(task), PLAN, out=tmp_path / "run", watch=stop)
    resumed = pipeline(task, by_width(task), PLAN, out=tmp_path / "run", resume=True)

    assert same_bits(whole.shared, resumed.shared)
    assert all(same_bits(whole.personal(device), resumed.personal(device)) for device in WIDTHS)


def test_many_sizes_keep_few_models() -> None:
    task = TASKS["transformer"]()
    devices = {f"d{n}": task.devices["d0"] for n in range(9)}
    task = Task(model=task.model, loss=task.loss, metrics=task.metrics, devices=devices, predict=task.predict)
    where = Adapters(after=["blocks.*.linear2"])
    partition = adapters(task.model(), where, width=lambda device: 1 + int(device[1:]))
    journal = MemoryJournal()
    stages = Stages(task, partition, PLAN, seed=1, devices=list(devices), journal=journal)
    visitor = Visitor(task, build_roles(stages.splits), MemoryStore(), seed=1)
    plain = build_model(task, seed=1)
    journal.save_shared("pretrained", Partition(plain).of(plain).shared)

    for device in [*devices, "d8"]:
        order = Order(
            stage=Stage.PERSONALIZED,
            round=0,
            device=device,
            work=Evaluate(model="personal"),
            shared=stages.open(Stage.PERSONALIZED).start.shared,
            start=stages.start_of(Stage.PERSONALIZED, partition.on(device)),
        )
        reply = visitor(order)
        assert isinstance(reply, Reply)

    assert len(visitor._workbenches) == 4


def test_adapters_start_from_the_pretrained_model_unchanged(tmp_path: Path) -> None:
    task = TASKS["resnet"]()
    partition = named_partition(task.model(), "adapter")
    plan = Plan(
        pretrain=Training(method=FedAvg(shared_lr=0.05), rounds=1, devices_per_round=2),
        personalize=Training(method=FedAlt(shared_lr=0.0, personal_lr=0.0), rounds=1, devices_per_round=2),
    )

    pipeline(task, partition, plan, out=tmp_path / "run")

    pretrained = from_bytes((tmp_path / "run/shared/pretrained.safetensors").read_bytes())
    shared = from_bytes((tmp_path / "run/shared/personalized.safetensors").read_bytes())
    start = from_bytes((tmp_path / "run/shared/start.safetensors").read_bytes())
    assert same_bits(shared, {name: pretrained[name] for name in shared})
    norms = {name: tensor for name, tensor in start.items() if ".adapter." not in name}
    assert same_bits(norms, {name: pretrained[name] for name in norms})
    assert len(norms) == 2 * (1 + 4 * 2)


def test_a_copied_plain_model_is_not_adapted() -> None:
    model = TASKS["resnet"]().model()
    before = copy.deepcopy(model).state_dict().keys()

    named_partition(model, "adapter")

    assert model.state_dict().keys() == before


@pytest.mark.parametrize("stateful", [True, False])
def test_a_run_is_not_resumed_with_other_sizes(tmp_path: Path, stateful: bool) -> None:
    task = TASKS["transformer"]()
    where = Adapters(after=["blocks.*.linear2"])
    method = FedAlt(shared_lr=0.05, batch_size=3, stateful=stateful)
    plan = Plan(personalize=Training(method=method, rounds=2, devices_per_round=2))

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    for name, before, after in (("one", 2, 4), ("each", lambda _: 2, lambda d: 4 if d == "d3" else 2)):
        with pytest.raises(KeyboardInterrupt):
            pipeline(task, adapters(task.model(), where, width=before), plan, out=tmp_path / name, watch=stop)
        with pytest.raises(ConfigError, match="started with other values of `partition`"):
            pipeline(task, adapters(task.model(), where, width=after), plan, out=tmp_path / name, resume=True)


def test_a_personal_tensor_without_effect_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(4, 2)
            self.spare = nn.Linear(4, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.used(inputs)

    task = task_of(Unused, classify, kinds)

    run(task, Partition(Unused(), personal=["spare.*", "used.bias"]), FedAlt(shared_lr=0.1), rounds=1)

    assert "These personal tensors have no effect on the loss: spare.weight, spare.bias." in caplog.text


def test_a_width_that_changes_its_mind_is_one_line_that_names_the_device() -> None:
    task = TASKS["transformer"]()
    answers = iter([3] * 100 + [2] * 100)
    partition = adapters(task.model(), Adapters(after=["blocks.*.linear2"]), width=lambda _: next(answers))

    with pytest.raises(
        ConfigError, match="The personal part of device 'd[0-3]' does not fit its model: `blocks"
    ):
        run(task, partition, FedAlt(shared_lr=0.05), rounds=40, devices_per_round=4)
