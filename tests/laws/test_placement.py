"""Placement: on a second device every method and every task gives what the CPU gives, and mistakes are caught."""

from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from marks import slow_but
from partita import (
    FedAlt,
    FedAvg,
    Finetuning,
    LocalSGD,
    Partition,
    Personalization,
    Plan,
    Regularization,
    Result,
    Task,
    Training,
    named_partition,
    pipeline,
    run,
)
from partita.config.loading import TASKS
from partita.data.examples import Batch
from partita.methods import registry
from partita.tasks.digits import digits
from partita.tasks.image import image
from partita.tasks.speech import speech
from partita.tasks.synthetic import synthetic
from partita.tasks.tabular import tabular
from partita.tasks.text import text
from second_device import DEVICE, SecondDevice
from small import Affine, affine_task, built, same_bits, square_error, task_of, word_task
from tables import png, split_of, texts, write


@pytest.fixture(autouse=True)
def _second_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `accelerator="cuda"` mean the second device."""
    found = {"cuda": (DEVICE,), "cpu": (torch.device("cpu"),)}
    monkeypatch.setattr("partita.device.accelerators.accelerators_named", found.__getitem__)
    monkeypatch.setattr("partita.device.placement.memory_of", lambda _: (10**9, 10**9))


def both(run: Callable[..., Result], **settings: Any) -> tuple[Result, Result]:
    """Return the results of a run on the second device and on the CPU."""
    with SecondDevice():
        there = run(accelerator="cuda", **settings)
    return there, run(accelerator="cpu", **settings)


def assert_close(there: Result, here: Result) -> None:
    """Check two results up to the order of sums, which differs where torch chooses its kernel by device."""
    assert there.shared.keys() == here.shared.keys()
    for name, tensor in here.shared.items():
        torch.testing.assert_close(there.shared[name], tensor, rtol=1e-4, atol=1e-6)
    for column in ("loss", "metric"):
        one, other = (result.devices[column].to_numpy().astype(float) for result in (there, here))
        np.testing.assert_allclose(one, other, rtol=1e-4)


@pytest.mark.parametrize("name", slow_but(registry.names(), "fedalt"))
def test_every_method_gives_the_same_bits_on_another_device(name: str) -> None:
    made = built(name, task_of(name), pretrain={"rounds": 1})

    there, here = both(partial(pipeline, made.task, made.personalization, made.plan))

    assert same_bits(there.shared, here.shared)
    assert there.devices.equals(here.devices)
    for device in made.task.devices:
        assert same_bits(there.personal(device), here.personal(device))
        assert all(type(tensor) is Tensor for tensor in there.personal(device).values())


def images(path: Path) -> Task:
    rows = texts(devices=2, image=lambda d, r: png(40 * r + d), label=lambda d, r: r % 2, split=split_of)
    data = str(write(path / "images.parquet", rows))
    return image(
        data=data, size=6, crop_from=8, flip=True, mean=0.5, std=[0.5], metrics=["accuracy", "log_loss"]
    )


def words(path: Path) -> Task:
    data = str(write(path / "texts.parquet", texts(devices=2, split=split_of)))
    return text(data=data, max_length=4, metrics=["accuracy", "perplexity"])


def sounds(path: Path) -> Task:
    for package in ("kaldi_native_fbank", "jiwer"):
        pytest.importorskip(package, reason="the extra `speech` is not installed")
    soundfile = pytest.importorskip("soundfile", reason="the extra `speech` is not installed")

    def audio(device: int, row: int) -> dict[str, Any]:
        content = BytesIO()
        # Of different lengths, so that batches are padded.
        noise = np.random.default_rng(row).standard_normal(4000 + 500 * row) * 0.1
        soundfile.write(content, noise, 8000, format="WAV", subtype="PCM_16")
        return {"bytes": content.getvalue(), "path": None}

    return speech(data=str(write(path / "sounds.parquet", texts(devices=2, audio=audio, split=split_of))))


def numbers(path: Path, *, regression: bool) -> Task:
    columns = {"a": lambda d, r: 1.0 * r, "b": lambda d, r: d - r / 2, "label": lambda d, r: r % 2}
    data = str(write(path / "numbers.parquet", texts(devices=2, split=split_of, **columns)))
    return tabular(data=data, regression=regression)


BUILT_IN: Mapping[str, Callable[[Path], Task]] = {
    "digits": lambda _: digits(metrics=["accuracy", "calibration_error"]),
    "image": images,
    "text": words,
    "speech": sounds,
    "tabular": partial(numbers, regression=False),
    "tabular, regression": partial(numbers, regression=True),
    "synthetic": lambda _: synthetic(devices=2, examples=5),
    "synthetic, mixture": lambda _: synthetic(form="mixture", devices=2, examples=5, validation=0.4),
}


def test_no_built_in_task_is_left_out() -> None:
    assert {name.partition(",")[0] for name in BUILT_IN} == set(TASKS)


@pytest.mark.parametrize("name", slow_but(BUILT_IN, "tabular", "synthetic"))
def test_every_task_gives_the_same_results_on_another_device(name: str, tmp_path: Path) -> None:
    task = BUILT_IN[name](tmp_path)
    method = FedAlt(shared_lr=0.01, batch_size=3, shared_steps=2, personal_steps=2)
    partition = named_partition(task.model(), "output")

    there, here = both(partial(run, task, partition, method, rounds=1, devices_per_round=2))

    assert_close(there, here)


@pytest.mark.slow
def test_adapters_tied_tensors_and_dropout_work_on_another_device() -> None:
    task = word_task()
    partition = named_partition(task.model(), "adapter", regularization=Regularization(dropout=0.1))

    there, here = both(partial(run, task, partition, FedAlt(shared_lr=0.1, batch_size=3), rounds=2))

    assert_close(there, here)


@pytest.mark.slow
def test_penalties_clipping_and_optimizers_work_on_another_device() -> None:
    own = Personalization(
        Partition(Affine(), personal="offset"),
        regularization=Regularization(l2=0.1, l2_to="start"),
        penalty=lambda model: model.get_parameter("offset").abs().sum(),
    )
    optimizer = partial(torch.optim.AdamW, weight_decay=0.1)
    method = FedAlt(shared_lr=0.1, proximal=0.3, max_grad_norm=0.5, optimizer=optimizer, batch_size=3)
    plan = Plan(
        pretrain=Training(method=FedAvg(shared_lr=0.1, proximal=0.3), rounds=1, devices_per_round=3),
        personalize=Training(method=method, rounds=2, devices_per_round=3),
        finetune=Finetuning(epochs=1, batch_size=3),
    )

    there, here = both(partial(pipeline, affine_task(), own, plan))

    assert same_bits(there.shared, here.shared)
    assert there.devices.equals(here.devices)


def named_task() -> Task:
    """The affine task, with batches that are dicts of rows of arrays."""

    def named(split: tuple[Tensor, Tensor]) -> dict[str, Any]:
        return {"x": split[0].numpy(), "y": split[1].numpy()}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return square_error(model, (batch["x"], batch["y"]))

    task = affine_task()
    devices = {d: {name: named(split) for name, split in s.items()} for d, s in task.devices.items()}
    return affine_task(
        devices=devices, loss=loss, predict=lambda model, batch: (model(batch["x"]), batch["y"])
    )


@pytest.mark.parametrize("free", [10**9, 0])
@pytest.mark.parametrize("task", slow_but([affine_task, named_task], named_task))
def test_results_do_not_depend_on_where_examples_are_kept(
    task: Callable[[], Task], free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.device.placement.memory_of", lambda _: (free, 10**9))
    partition = Partition(Affine(), personal="offset")

    there, here = both(partial(run, task(), partition, FedAlt(shared_lr=0.1, batch_size=3), rounds=2))

    assert same_bits(there.shared, here.shared)
    assert there.devices.equals(here.devices)


class WithPlainTensor(Affine):
    """A model with a tensor that is neither a parameter nor a buffer, so that `to` does not move it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(3)

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs * self.scale)


class CreatesTensor(LocalSGD):
    """A method that creates a tensor on the CPU, whatever the device of the model."""

    def __call__(self, model: nn.Module, *others: Any) -> list[float]:
        losses = super().__call__(model, *others)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.zeros(parameter.shape))
        return losses


def smoothed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A loss that creates a tensor on the CPU."""
    inputs, targets = batch
    return square_error(model, (inputs, targets + torch.zeros(len(targets))))


@pytest.mark.parametrize(
    "planted",
    [{"model": WithPlainTensor}, {"loss": smoothed}, {"method": FedAvg(shared_lr=0.1, local=CreatesTensor)}],
)
def test_a_tensor_created_on_the_cpu_is_noticed(planted: dict[str, Any]) -> None:
    method = planted.pop("method", FedAvg(shared_lr=0.1))
    task = affine_task(**planted)
    go = partial(run, task, Partition(task.model()), method, rounds=1)

    go(accelerator="cpu")
    with SecondDevice(), pytest.raises(RuntimeError, match="on the same device"):
        go(accelerator="cuda")


def test_metrics_get_predictions_and_targets_on_the_cpu() -> None:
    seen: set[str] = set()

    def metric(predictions: Tensor, targets: Tensor) -> float:
        seen.update({predictions.device.type, targets.device.type})
        return 0.0

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.add(f"batch on {batch[0].device}, model on {next(model.parameters()).device}")
        return square_error(model, batch)

    with SecondDevice():
        run(
            affine_task(metrics={"zero": metric}, loss=loss),
            Partition(Affine()),
            FedAvg(),
            rounds=1,
            accelerator="cuda",
        )

    # The task is checked on the CPU before the run.
    assert seen == {"cpu", "batch on cpu, model on cpu", "batch on meta, model on meta"}
