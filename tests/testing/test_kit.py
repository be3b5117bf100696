"""The kit of laws: every built-in method, task and executor keeps them, and what breaks one is told so."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from marks import slow_but
from partita import LocalAlt, Task, accuracy
from partita.errors import ConfigError
from partita.executors.serial import SerialExecutor
from partita.executors.workers import WorkersExecutor
from partita.methods import registry
from partita.models.pretrained import Pretrained
from partita.protocol import Failure, Order, Reply, Tally
from partita.tasks.digits import digits
from partita.tasks.image import image
from partita.tasks.synthetic import synthetic
from partita.tasks.tabular import tabular
from partita.tasks.text import text
from partita.testing import check_executor, check_method, check_task
from partita.testing.small import SmallNet, small_devices, small_task
from small import affine_task, normed_task, word_task
from tables import png, write


@pytest.mark.parametrize("method", slow_but(registry.names(), "fedalt", "fedavg", "scaffold"))
def test_every_built_in_method_keeps_the_laws(method: str, tmp_path: Path) -> None:
    fewer_epochs = {"personalize.personal_epochs": 2} if method == "fedrep" else {}
    check_method(method, fewer_epochs, workers=1, folder=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", registry.names())
def test_every_built_in_method_keeps_them_with_worker_processes(method: str, tmp_path: Path) -> None:
    check_method(method, workers=2, folder=tmp_path)


TASKS = {
    "small": small_task,
    "affine": affine_task,
    "batch statistics": normed_task,
    "words": word_task,
    "digits": digits,
    "synthetic": synthetic,
}


@pytest.mark.parametrize("name", TASKS)
def test_tasks_keep_the_laws(name: str) -> None:
    check_task(TASKS[name]())


def rank_of(device: str) -> int:
    """1, 2 or 3."""
    return int(device[1:]) % 3 + 1


RANKS = {"partition.adapter_width": "test_kit:rank_of", "partition.largest_width": 3}


@pytest.mark.slow
def test_a_method_keeps_the_laws_with_ranks_that_differ_by_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)

    check_method("hetlora", RANKS, workers=1, folder=tmp_path)
    check_method("fedalt", {**RANKS, "partition.personal": "adapter"}, workers=1)
    with pytest.raises(ConfigError, match="must declare `fills`"):
        check_method("fedavg", {**RANKS, "partition.shared": "adapter"}, workers=1)


@pytest.mark.slow
def test_tasks_from_files_keep_the_laws(tmp_path: Path) -> None:
    numbers = [
        {
            "device": f"d{n // 8}",
            "a": n / 7,
            "b": n % 5,
            "label": n % 2,
            "split": "train" if n % 4 else "test",
        }
        for n in range(24)
    ]
    words = [{"device": f"d{n // 8}", "text": f"the {n} of {n % 2}"} for n in range(24)]
    images = [
        {"device": f"d{n // 8}", "image": png(9 * n), "label": n % 2, "split": "train" if n % 4 else "test"}
        for n in range(24)
    ]
    for name, rows in {"numbers": numbers, "words": words, "images": images}.items():
        write(tmp_path / f"{name}.parquet", rows)

    check_task(tabular(data=str(tmp_path / "numbers.parquet")))
    check_task(text(data=str(tmp_path / "words.parquet"), max_length=5))
    check_task(image(data=str(tmp_path / "images.parquet"), size=8))


@pytest.mark.slow
def test_a_task_in_the_tokens_of_a_pretrained_model_keeps_the_laws(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    pytest.importorskip("peft", reason="the extra `hf` is not installed")
    from tiny_models import write_bert, write_llama

    kinds = ("train", "train", "test")
    rows = [
        {
            "device": f"d{n // 6}",
            "text": "the cat sat on a mat"[: 7 + n],
            "label": n % 2,
            "split": kinds[n % 3],
        }
        for n in range(18)
    ]
    write(tmp_path / "texts.parquet", rows)
    given = {"data": str(tmp_path / "texts.parquet"), "max_length": 6}

    lora = {"r": 2, "targets": ["q_proj"]}
    path = str(write_llama(tmp_path / "llama"))
    check_task(text(tokenizer=path, **given).with_model(partial(Pretrained, path=path, lora=lora)))
    check_task(text(tokenizer=str(write_bert(tmp_path / "bert")), label="label", **given))


def test_the_serial_executor_keeps_the_laws() -> None:
    check_executor(lambda serial, store: serial)


@pytest.mark.slow
def test_worker_processes_keep_the_laws() -> None:
    check_executor(lambda serial, store: WorkersExecutor(serial, lambda: 2))


class Forgetful(LocalAlt):
    """Draws random numbers that no seed gives."""

    count = 0

    def __call__(self, model: Any, partition: Any, batches: Any, loss: Any) -> list[float]:
        losses = super().__call__(model, partition, batches, loss)
        Forgetful.count += 1
        with torch.no_grad():
            for tensor in partition.of(model).shared.values():
                if tensor.is_floating_point():
                    tensor.add_(1e-3 * Forgetful.count)
        return losses


class Demanding(LocalAlt):
    """Has a hyperparameter without a default."""

    def __init__(self, *, personal: Any, shared: Any, strength: float) -> None:
        super().__init__(personal=personal, shared=shared)


def test_a_method_that_does_not_repeat_itself_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("small.Forgetful", Forgetful, raising=False)
    monkeypatch.setattr("small.Demanding", Demanding, raising=False)

    with pytest.raises(
        AssertionError, match="unseen devices leave no trace in the shared part|same bits again"
    ):
        check_method("small:Forgetful", workers=1)
    with pytest.raises(AssertionError, match="Every hyperparameter has a default: `strength`"):
        check_method("small:Demanding", workers=1)


def test_a_task_that_breaks_a_law_is_told() -> None:
    def task(**changes: Any) -> Task:
        settings = {
            "model": SmallNet,
            "loss": lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
            "metrics": {"accuracy": accuracy},
            "devices": small_devices(2),
        }
        return Task(**(settings | changes))

    generator = torch.Generator().manual_seed(1)

    def unseeded() -> nn.Module:
        model = SmallNet()
        nn.init.normal_(model.head.weight, generator=generator)
        return model

    class Drawing:
        """Examples that are drawn again each time."""

        def __len__(self) -> int:
            return 6

        def batch_at(self, positions: torch.Tensor) -> Any:
            inputs = torch.randn(len(positions), 4, generator=generator)
            return inputs, torch.zeros(len(positions), dtype=torch.int64)

    broken = {
        "the model gives the same one": task(model=unseeded),
        "finite scalar with a gradient": task(loss=lambda model, batch: torch.tensor(1.0)),
        "one entry for each example": task(predict=lambda model, batch: (model(batch[0])[:1], batch[1])),
        "batch of some positions is the same": task(devices={"a": {"train": Drawing()}}),
    }
    for words, each in broken.items():
        with pytest.raises(AssertionError, match=words):
            check_task(each)


class Losing(SerialExecutor):
    """Answers no order of the last device."""

    def ask(self, orders: Iterable[Order]) -> Iterator[Reply | Tally | Failure]:
        return super().ask(list(orders)[:-1])


class Adding(SerialExecutor):
    """Adds up changes that are asked for singly."""

    def ask(self, orders: Iterable[Order]) -> Iterator[Reply | Tally | Failure]:
        return super().ask([replace(order, single=False) for order in orders])


class Keeping(SerialExecutor):
    """Counts every device."""

    def close(self, label: str, counted: Sequence[str], asked: Sequence[str]) -> None:
        super().close(label, asked, asked)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Losing, "5 orders have 4"),
        (Adding, "single order comes with its reply"),
        (Keeping, "not counted keeps nothing"),
    ],
)
def test_an_executor_that_breaks_a_law_is_told(kind: Any, words: str) -> None:
    def make(serial: SerialExecutor, store: Any) -> Any:
        made = kind.__new__(kind)
        made.__dict__.update(serial.__dict__)
        return made

    with pytest.raises(AssertionError, match=words):
        check_executor(make)
