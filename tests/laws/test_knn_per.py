"""kNN-Per against its formula in NumPy: the shared model is FedAvg's, and predictions use a memory."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from partita import (
    Evaluation,
    FedAvg,
    LocalMemory,
    LocalRoD,
    Method,
    OwnExamples,
    Partition,
    Plan,
    Result,
    Steps,
    Task,
    Training,
    pipeline,
)
from partita.cli import main
from partita.data.examples import examples_of
from partita.errors import ConfigError
from partita.methods.knn_per import Memory
from partita.models.parts import named_partition
from partita.tasks.text import PAD, text
from small import class_devices, class_task, normed_task, same_bits
from tables import write

STEPS = {"shared_lr": 0.5, "shared_steps": 3, "batch_size": 1000}


def knn(**options: Any) -> Method:
    return Method(local=partial(LocalMemory, **options), personal_epochs=0, **STEPS)


def train(method: Method, *, task: Task | None = None, unseen: float = 0.0, **options: Any) -> Result:
    task = task or class_task()
    plan = Plan(
        personalize=Training(method=method, rounds=3, devices_per_round=2),
        evaluate=Evaluation(unseen=unseen),
    )
    return pipeline(task, Partition(task.model()), plan, **options)


def expected(
    shared: Any, splits: Any, *, neighbors: int, weight: float, scale: float, split: str = "test"
) -> np.ndarray:
    """The mean of the model's probabilities and the votes of the nearest training examples, in float64."""
    u = {name: tensor.double().numpy() for name, tensor in shared.items()}

    def features(inputs: Any) -> np.ndarray:
        return np.tanh(inputs.double().numpy() @ u["body.weight"].T + u["body.bias"])

    queries, keys = features(splits[split][0]), features(splits["train"][0])
    scores = np.exp(queries @ u["head.weight"].T + u["head.bias"])
    own = scores / scores.sum(1, keepdims=True)
    votes = np.zeros_like(own)
    for row, query in enumerate(queries):
        distances = ((keys - query) ** 2).sum(1)
        for near in np.argsort(distances)[:neighbors]:
            votes[row, splits["train"][1][near]] += np.exp(-distances[near] / (4 * scale))
    return weight * votes / votes.sum(1, keepdims=True) + (1 - weight) * own


OPTIONS = {"neighbors": 3, "memory_weight": 0.7, "scale": 0.05}
FORMULA = {"neighbors": 3, "weight": 0.7, "scale": 0.05}


def test_a_device_predicts_as_the_formula_says_and_the_model_is_that_of_fedavg() -> None:
    result, fedavg = train(knn(**OPTIONS)), train(FedAvg(**STEPS))

    assert same_bits(result.shared, fedavg.shared)
    rows = result.devices.to_pylist()
    for device, splits in class_devices().items():
        for split in ("train", "test"):
            mean = expected(result.shared, splits, **FORMULA, split=split)
            labels = splits[split][1].numpy()
            (row,) = [
                r for r in rows if (r["stage"], r["device"], r["split"]) == ("personalized", device, split)
            ]
            assert row["loss"] == pytest.approx(
                -np.log(mean[np.arange(len(labels)), labels]).mean(), rel=1e-4
            )
            assert row["metric"] == pytest.approx((mean.argmax(1) == labels).mean())
        inputs = splits["test"][0]
        np.testing.assert_allclose(
            result.model(device)(inputs).exp().detach().numpy(),
            expected(result.shared, splits, **FORMULA),
            atol=1e-5,
        )
        assert result.model(device, "global")(inputs).shape == (len(inputs), 3)


def test_with_no_weight_on_the_memory_it_is_the_shared_model() -> None:
    result, fedavg = train(knn(memory_weight=0.0)), train(FedAvg(**STEPS))

    losses = [
        [r["loss"] for r in each.devices.to_pylist() if r["stage"] == "personalized"]
        for each in (result, fedavg)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_with_fewer_examples_than_neighbors_all_of_them_vote() -> None:
    splits = class_devices()["d0"]
    result = train(knn(neighbors=1000, memory_weight=1.0))

    mean = expected(result.shared, splits, neighbors=10, weight=1.0, scale=1.0)
    found = result.model("d0")(splits["test"][0]).exp().detach().numpy()
    np.testing.assert_allclose(found, mean, atol=1e-5)


def test_nothing_is_kept_and_unseen_devices_predict_without_training(tmp_path: Path) -> None:
    task = class_task(devices=class_devices(10))
    result = train(knn(**OPTIONS), task=task, unseen=0.4, out=tmp_path / "run")

    assert not list((tmp_path / "run/personal").glob("*"))
    rows = [r for r in result._record.measurements.to_pylist() if not r["seen"] and r["split"] == "test"]
    own = [row for row in rows if row["stage"] == "personalized"]
    assert own
    assert not any(line.get("work") == "finetune" for line in result._record.lines())
    for row in own:
        splits = class_devices(10)[row["device"]]
        mean = expected(result.shared, splits, **FORMULA)
        labels = splits["test"][1].numpy()
        assert row["loss"] == pytest.approx(-np.log(mean[np.arange(len(labels)), labels]).mean(), rel=1e-4)


def test_a_device_without_training_examples_predicts_with_the_model() -> None:
    devices = class_devices()
    devices["d3"] = {"test": devices["d3"]["test"]}
    inputs = devices["d3"]["test"][0]
    result = train(knn(), task=class_task(devices=devices))

    own = class_task().model()
    own.load_state_dict(result.shared)
    assert result.model("d3")(inputs).equal(own(inputs))


def test_workers_give_the_same_bits(tmp_path: Path) -> None:
    serial = train(knn(), out=tmp_path / "serial")
    parallel = train(knn(), out=tmp_path / "parallel", workers=2)

    assert parallel.devices == serial.devices


CONFIG = """
[task]
kind = "small:class_task"
[pretrain]
rounds = 1
devices_per_round = 2
[personalize]
method = "knn_per"
rounds = 1
devices_per_round = 2
"""


def test_a_model_with_a_memory_is_not_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(CONFIG)
    assert main(["run", "mine.toml", "out=a"]) == 0
    capsys.readouterr()

    assert main(["export", "a", "d0", "model.safetensors"]) == 1

    assert "predicts with the device's training examples" in capsys.readouterr().err
    assert not (tmp_path / "model.safetensors").exists()


def test_a_task_without_classes_and_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="kNN-Per needs a task whose targets are classes"):
        train(knn(), task=normed_task())
    for options in ({"neighbors": 0}, {"memory_weight": 1.5}, {"scale": 0.0}):
        with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be"):
            knn(**options)


def test_votes_are_those_of_the_nearest_by_hand() -> None:
    # Keys 0 and 2 of classes 0 and 1, in one dimension, query 1/2: squared distances 1/4 and 9/4.
    model = torch.nn.Linear(1, 2)
    keys, labels = torch.tensor([[0.0], [2.0]]), torch.tensor([0, 1])
    memory = Memory(model, keys, labels, neighbors=2, memory_weight=1.0, scale=1.0)

    found = memory(torch.tensor([[0.5]])).exp()[0]

    assert found[0].item() == pytest.approx(1 / (1 + np.exp(-2.0)))


def test_a_task_without_classes_is_one_line_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(CONFIG.replace("class_task", "normed_task"))

    assert main(["run", "mine.toml"]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert "kNN-Per needs a task whose targets are classes" in line
    assert not (tmp_path / "runs").exists()


def test_padding_of_texts_is_neither_memorized_nor_counted_as_a_class(tmp_path: Path) -> None:
    texts = ["a b c", "a", "b a", "c c c c"]
    rows = [{"device": "d0", "text": t, "split": "train"} for t in texts]
    write(tmp_path / "texts.parquet", [*rows, {"device": "d0", "text": "b", "split": "test"}])
    task = text(data=str(tmp_path / "texts.parquet"), max_length=5)
    examples = OwnExamples(examples_of(task.devices["d0"]["train"]), 1, task.predict)
    settings = {"neighbors": 3, "memory_weight": 0.5, "scale": 1.0}

    memory = LocalMemory.predicts(task.model().eval(), examples, **settings)
    steps = Steps(count=1, lr=0.1)
    second = named_partition(task.model(), "second_head").prepare(task.model())
    prior = LocalRoD(personal=steps, shared=steps, examples=examples)._prior(second)

    # Ten words and the four ends of texts, of which five fit in every text.
    assert isinstance(memory, Memory)
    assert len(memory.labels) == 14
    assert not (memory.labels == PAD).any()
    assert prior.exp().sum().item() == pytest.approx(14)
    assert prior[PAD].item() == float("-inf")
