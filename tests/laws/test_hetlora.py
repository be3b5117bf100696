"""HetLoRA against its algorithm in plain torch: ranks by device, zero padding, weights by norms."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Size, Tensor, nn

from partita import (
    Adapters,
    Evaluation,
    FedAvg,
    LocalHetLoRA,
    LocalScaffold,
    Method,
    Partition,
    Personalization,
    Plan,
    Result,
    Task,
    Training,
    pipeline,
    shared_adapters,
)
from partita.cli import main
from partita.errors import ConfigError
from partita.partition.padding import narrowed, padded
from partita.protocol import derive_seed
from partita.tasks.build import build_model, initial_model
from small import Classifier, class_devices, class_task, same_bits

ROUNDS, COHORT, STEPS, RATE, LARGEST = 3, 2, 2, 0.5, 3
WHERE = Adapters(after="body")
PREFIX = "body.adapter."


def width_of(device: str) -> int:
    """1, 2, 3 and 3 for the four devices, then 1, 2, 3 again."""
    return {"d0": 1, "d1": 2, "d2": 3, "d3": 3}.get(device, int(device[1:]) % 3 + 1)


def hetlora(**settings: Any) -> Method:
    steps = {"shared_lr": RATE, "shared_steps": STEPS, "batch_size": 1000, "personal_epochs": 0}
    return Method(local=LocalHetLoRA, **(steps | settings))


def split(width: Any = width_of) -> Personalization:
    return shared_adapters(Classifier(), WHERE, width=width, largest=LARGEST)


def train(
    *,
    method: Method | None = None,
    own: Personalization | None = None,
    task: Task | None = None,
    unseen: float = 0.0,
    **options: Any,
) -> Result:
    training = Training(method=method or hetlora(), rounds=ROUNDS, devices_per_round=COHORT)
    plan = Plan(personalize=training, evaluate=Evaluation(unseen=unseen))
    return pipeline(task or class_task(), own or split(), plan, **options)


DIMENSION = {"down.weight": 0, "down.bias": 0, "up.weight": 1}
"""The dimension of each tensor that is the rank."""


def of_rank(u: dict[str, Tensor], rank: int) -> dict[str, Tensor]:
    return {
        name: t.narrow(DIMENSION[name], 0, rank).clone() if name in DIMENSION else t.clone()
        for name, t in u.items()
    }


def with_zeros(own: dict[str, Tensor], u: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {name: torch.zeros_like(tensor) for name, tensor in u.items()}
    for name, tensor in own.items():
        target = found[name]
        if name in DIMENSION:
            target = target.narrow(DIMENSION[name], 0, tensor.shape[DIMENSION[name]])
        target.copy_(tensor.detach())
    return found


def scores(base: nn.Module, own: dict[str, Tensor], inputs: Tensor) -> Tensor:
    features = base.body(inputs)
    inner = torch.relu(features @ own["down.weight"].T + own["down.bias"])
    return base.head(torch.tanh(features + inner @ own["up.weight"].T + own["up.bias"]))


def published(base: nn.Module, u: dict[str, Tensor]) -> dict[str, Tensor]:
    """The shared low-rank modules after all rounds, in float64."""
    devices = class_devices()
    for t in range(ROUNDS):
        sampler = random.Random(derive_seed(1, "personalized", t, "cohort"))
        replies, norms = [], []
        for i in sampler.sample(range(len(devices)), COHORT):
            device = list(devices)[i]
            inputs, labels = devices[device]["train"][0].double(), devices[device]["train"][1]
            own = {name: t.requires_grad_() for name, t in of_rank(u, width_of(device)).items()}
            for _ in range(STEPS):
                loss = nn.functional.cross_entropy(scores(base, own, inputs), labels)
                gradients = torch.autograd.grad(loss, list(own.values()))
                for tensor, gradient in zip(own.values(), gradients, strict=True):
                    tensor.data -= RATE * gradient
            replies.append(with_zeros(own, u))
            norms.append((own["up.weight"] @ own["down.weight"]).norm().item())
        weights = torch.tensor(norms).double() / sum(norms)
        u = {name: torch.stack([r[name] for r in replies]) for name in u}
        u = {name: torch.tensordot(weights, stacked, dims=1) for name, stacked in u.items()}
    return u


def test_hetlora_is_its_algorithm() -> None:
    result, own = train(), split()
    start = own.partition.of(build_model(class_task(), own, seed=1)).shared
    base = copy.deepcopy(initial_model(class_task(), seed=1)).double()
    first = {name.removeprefix(PREFIX): t.detach().double() for name, t in start.items()}

    u = published(base, first)

    assert {name.removeprefix(PREFIX) for name in result.shared} == set(u)
    for name, tensor in u.items():
        assert result.shared[f"{PREFIX}{name}"].double().allclose(tensor.detach(), atol=1e-5)
    for device, splits in class_devices().items():
        inputs = splits["test"][0]
        expected = scores(base, of_rank(u, width_of(device)), inputs.double())
        assert result.model(device)(inputs).double().allclose(expected, atol=1e-4)
        shapes = {name: t.shape for name, t in result.model(device).state_dict().items()}
        assert shapes[f"{PREFIX}down.weight"] == Size([width_of(device), 4])


def test_what_travels_has_the_largest_rank_and_nothing_is_kept(tmp_path: Path) -> None:
    result = train(out=tmp_path / "run")

    # Down: 3 x 4 + 3 numbers, up: 4 x 3 + 4, of four bytes, for two devices.
    lines = [line for line in result._record.rounds() if line["work"] == "update"]
    assert [line["bytes"] for line in lines] == [{"down": 2 * 31 * 4, "up": 2 * 31 * 4}] * ROUNDS
    assert not list((tmp_path / "run/personal").glob("*"))


def test_a_reply_weighs_by_the_norm_of_all_products() -> None:
    # B A = [[2], [0]] [[3, 0]] has the norm 6, and [[4]] [[2]] the norm 8: together 10.
    shared = {
        "x.A": torch.tensor([[3.0, 0.0]]),
        "x.bias": torch.ones(1),
        "x.B": torch.tensor([[2.0], [0.0]]),
        "y.A": torch.tensor([[2.0]]),
        "y.B": torch.tensor([[4.0]]),
    }

    assert LocalHetLoRA.weighs(shared, 7) == 10 * 2**30
    assert LocalHetLoRA.weighs({name: torch.zeros_like(t) for name, t in shared.items()}, 7) == 1


def test_the_layers_of_a_head_are_no_low_rank_module() -> None:
    # The head of DistilBERT, and that of RoBERTa, has two layers, one of them square.
    generator = torch.Generator().manual_seed(1)
    lora = {
        "layer.1.q.lora_A.default.weight": torch.tensor([[3.0, 0.0, 0.0, 0.0]]),
        "layer.1.q.lora_B.default.weight": torch.tensor([[2.0], [0.0]]),
    }
    head = {
        "classifier.dense.weight": torch.randn(4, 4, generator=generator),
        "classifier.out_proj.weight": torch.randn(2, 4, generator=generator),
    }
    stem = {"stem.weight": torch.randn(4, 9, generator=generator)}

    assert LocalHetLoRA.weighs({**stem, **lora, **head}, 7) == LocalHetLoRA.weighs(lora, 7) == 6 * 2**30


def test_with_one_rank_on_all_devices_and_equal_norms_it_is_fedavg_of_the_adapters() -> None:
    class Equal(LocalHetLoRA):
        @staticmethod
        def weighs(shared: Any, examples: int) -> int:
            return examples

    settings = {"shared_lr": RATE, "shared_steps": STEPS, "batch_size": 1000}
    own = train(method=hetlora(), own=split(LARGEST))
    equal = train(method=Method(local=Equal, personal_epochs=0, **settings), own=split(LARGEST))
    averaged = train(method=FedAvg(**settings), own=split(LARGEST))

    assert same_bits(equal.shared, averaged.shared)
    assert not same_bits(own.shared, averaged.shared)


def test_padding_fills_what_a_device_lacks() -> None:
    sent = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.tensor([5.0])}
    own = {"a": narrowed(sent["a"], Size([1, 2])) + 10, "b": torch.tensor([6.0])}

    zeros, same = padded(own, sent, torch.zeros_like), padded(own, sent, lambda tensor: tensor)

    assert zeros["a"].tolist() == [[11.0, 12.0], [0.0, 0.0]]
    assert same["a"].tolist() == [[11.0, 12.0], [3.0, 4.0]]
    assert zeros["b"] is own["b"]
    assert sent["a"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.slow
def test_unseen_devices_have_their_rank_and_workers_and_resume_the_same_bits(tmp_path: Path) -> None:
    task = class_task(devices=class_devices(10))
    options: dict[str, Any] = {"task": task, "unseen": 0.4}
    whole = train(out=tmp_path / "whole", **options)
    parallel = train(out=tmp_path / "parallel", workers=2, **options)

    def stop(line: Any, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path / "resumed", watch=stop, **options)
    resumed = train(out=tmp_path / "resumed", resume=True, **options)

    unseen = {row["device"] for row in whole._record.measurements.to_pylist() if not row["seen"]}
    assert unseen
    for device in unseen:
        assert len(whole.model(device).get_parameter(f"{PREFIX}down.bias")) == width_of(device)
    for other in (parallel, resumed):
        assert same_bits(other.shared, whole.shared)
        assert other.devices == whole.devices


def test_a_method_that_fills_nothing_cannot_train_models_of_several_ranks() -> None:
    fedavg = FedAvg(shared_lr=RATE, shared_steps=STEPS, batch_size=1000)

    with pytest.raises(ConfigError, match="it must declare `fills`"):
        train(method=fedavg)


def test_sent_tensors_of_a_method_have_the_shapes_of_the_device_too() -> None:
    class Filling(LocalScaffold):
        @staticmethod
        def fills(sent: Tensor) -> Tensor:
            return sent

    settings = {"shared_lr": 0.1, "shared_steps": STEPS, "batch_size": 1000, "personal_epochs": 0}
    result = train(method=Method(local=Filling, weights="equal", **settings))

    for device in class_devices():
        if kept := result._record.kept(device):
            assert len(kept[f"control/{PREFIX}down.bias"]) == width_of(device)


def test_a_device_wider_than_the_shared_adapters_and_a_missing_largest_width_are_refused() -> None:
    with pytest.raises(ValueError, match="shared part of device 'd0' must have the same names and shapes"):
        split(lambda device: 4).on("d0")
    with pytest.raises(ValueError, match="need `largest_width`"):
        shared_adapters(Classifier(), WHERE, width=width_of)


def test_shared_tensors_may_differ_in_one_dimension_only() -> None:
    def linear(inputs: int, outputs: int) -> Personalization:
        return Personalization(Partition(nn.Linear(inputs, outputs)))

    common = Personalization(linear(4, 3).partition, by_device=lambda device: linear(3, 2))

    with pytest.raises(ValueError, match="smaller in one dimension"):
        common.on("any")


CONFIG = """
[task]
kind = "small:class_task"
[partition]
adapter_width = "test_hetlora:width_of"
largest_width = 3
[pretrain]
rounds = 1
devices_per_round = 2
[personalize]
method = "hetlora"
rounds = 1
devices_per_round = 2
"""


def test_a_config_trains_the_whole_model_first_and_then_adapters_of_several_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    (tmp_path / "mine.toml").write_text(CONFIG)

    assert main(["run", "mine.toml", "out=a"]) == 0
    assert main(["export", "a", "d1", "model.safetensors"]) == 0
    capsys.readouterr()
    assert main(["describe", "mine.toml"]) == 0

    assert "`hetlora` declares: `weighs` (the weight of a reply), `fills` (" in capsys.readouterr().out
    assert main(["run", "mine.toml", "personalize.method=fedavg", "partition.shared=adapter", "out=b"]) == 2
    assert "must declare `fills`" in capsys.readouterr().err
