"""Equalities that the algorithms must satisfy, against independent computations."""

import hashlib
import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from partita import FedAlt, FedAvg, FedSim, Partition, Result, Task, run
from partita.protocol import derive_seed
from small import Affine, Normed, affine_devices, affine_task, float64_task, normed_task, same_bits

SETTINGS = {"rounds": 5, "devices_per_round": 3}


def train(method: Any, *, task: Task | None = None, seed: int = 1, **claims: Any) -> Result:
    task = task or affine_task()
    return run(task, Partition(task.model(), **claims), method, seed=seed, **SETTINGS)


def test_with_nothing_personal_fedsim_and_fedalt_are_fedavg() -> None:
    average, simultaneous, alternating = (
        train(kind(shared_lr=0.1, batch_size=3), task=normed_task()) for kind in (FedAvg, FedSim, FedAlt)
    )

    assert same_bits(simultaneous.shared, average.shared)
    assert same_bits(alternating.shared, average.shared)


def test_without_personal_steps_fedalt_leaves_every_v_alone() -> None:
    result = train(FedAlt(shared_lr=0.1, personal_epochs=0), personal="offset")

    for number in range(6):
        assert result.personal(f"d{number}")["offset"].item() == 0.0


def test_without_shared_steps_u_stays_and_v_moves() -> None:
    start = train(FedAlt(shared_lr=0.0, personal_epochs=0), personal="offset")
    result = train(FedAlt(shared_lr=0.1, shared_epochs=0), personal="offset")

    assert same_bits(result.shared, start.shared)
    assert any(result.personal(f"d{number}")["offset"].item() for number in range(6))


def test_a_device_that_was_not_sampled_keeps_its_start() -> None:
    task = affine_task()
    result = run(
        task,
        Partition(task.model(), personal="offset"),
        FedAlt(shared_lr=0.1),
        rounds=1,
        devices_per_round=2,
    )

    moved = {f"d{n}" for n in range(6) if result.personal(f"d{n}")["offset"].item() != 0.0}
    sampler = random.Random(derive_seed(1, "personalized", 0, "cohort"))
    assert moved == {f"d{position}" for position in sampler.sample(range(6), 2)}


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    one, again, other = (
        train(FedAlt(shared_lr=0.1, batch_size=2), personal="offset", seed=seed) for seed in (1, 1, 2)
    )

    assert same_bits(one.shared, again.shared)
    assert one.devices.equals(again.devices)
    assert not same_bits(one.shared, other.shared)


def numpy_run(method: str, *, rounds: int, cohort: int, gamma_u: float, gamma_v: float) -> Any:
    """FedAlt or FedSim with one full-batch step on an affine model, in float64 and NumPy alone."""
    seed = 1
    torch.manual_seed(derive_seed(seed, "model"))
    u = Affine().slope.weight.detach().numpy().astype(float).ravel()
    devices = [
        tuple(field.numpy().astype(float) for field in device["train"])
        for device in affine_devices().values()
    ]
    v = np.zeros(len(devices))
    for t in range(rounds):
        key = json.dumps([seed, "personalized", t, "cohort"]).encode()
        sampler = random.Random(int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1)
        chosen = sampler.sample(range(len(devices)), cohort)
        changes, weights = [], []
        for i in chosen:
            x, y = devices[i]
            residual = x @ u + v[i] - y
            old_v = v[i]
            v[i] = old_v - gamma_v * residual.mean()
            if method == "fedalt":
                residual = x @ u + v[i] - y
            changes.append(-gamma_u * (residual @ x) / len(y))
            weights.append(len(y))
        u = u + np.average(changes, axis=0, weights=weights)
    return u, v


@pytest.mark.parametrize(("name", "method"), [("fedalt", FedAlt), ("fedsim", FedSim)])
def test_linear_regression_equals_the_numpy_computation(name: str, method: Any) -> None:
    task = affine_task()
    settings = method(shared_lr=0.2, personal_lr=0.4, batch_size=1000)

    result = run(task, Partition(task.model(), personal="offset"), settings, rounds=12, devices_per_round=3)

    u, v = numpy_run(name, rounds=12, cohort=3, gamma_u=0.2, gamma_v=0.4)
    np.testing.assert_allclose(result.shared["slope.weight"].numpy().ravel(), u, atol=2e-6)
    np.testing.assert_allclose([result.personal(f"d{n}")["offset"].item() for n in range(6)], v, atol=2e-6)


def test_a_float64_model_equals_the_numpy_computation_to_float64_precision() -> None:
    task = float64_task()
    method = FedAlt(shared_lr=0.2, personal_lr=0.4, batch_size=1000)

    result = run(task, Partition(task.model(), personal="offset"), method, rounds=12, devices_per_round=3)

    u, _ = numpy_run("fedalt", rounds=12, cohort=3, gamma_u=0.2, gamma_v=0.4)
    assert result.shared["slope.weight"].dtype == torch.float64
    np.testing.assert_allclose(result.shared["slope.weight"].numpy().ravel(), u, rtol=0, atol=2e-14)


def test_no_device_is_left_out_of_the_mean_for_large_statistics() -> None:
    # After one step, BatchNorm's running variance is 0.9 x 1 + 0.1 x the variance of the batch. With features of
    # standard deviation 500 it changes by about 25,000, which times 2^36 and 3,000 examples is past 2^62.
    generator = torch.Generator().manual_seed(0)
    devices = {}
    for number, examples in enumerate((10, 2_000, 3_000)):
        inputs = 500 * torch.randn(examples, 3, generator=generator)
        split = inputs, torch.randn(examples, generator=generator)
        devices[f"d{number}"] = {"train": split, "test": split}

    class Scaled(Affine):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(self.norm(inputs))

    task = affine_task(model=Scaled, devices=devices)

    result = run(task, Partition(task.model()), FedAvg(batch_size=5_000), rounds=1, devices_per_round=3)

    variances = [split["train"][0].double().var(dim=0).numpy() for split in devices.values()]
    expected = 0.9 + 0.1 * np.average(variances, axis=0, weights=[10, 2_000, 3_000])
    np.testing.assert_allclose(result.shared["norm.running_var"].numpy(), expected, rtol=1e-6)


def test_the_two_algorithms_differ() -> None:
    alternating, simultaneous = (
        numpy_run(name, rounds=12, cohort=3, gamma_u=0.2, gamma_v=0.4)[0] for name in ("fedalt", "fedsim")
    )

    assert np.abs(alternating - simultaneous).max() > 1e-3


def test_shared_statistics_of_batchnorm_are_averaged_and_personal_ones_stay() -> None:
    result = train(FedAlt(shared_lr=0.05, batch_size=3), task=normed_task(), personal="head.*")

    assert result.shared["body.1.num_batches_tracked"].item() > 0
    assert result.shared["body.1.running_mean"].any()
    assert "head.1.running_mean" not in result.shared
    means = {tuple(result.personal(f"d{n}")["head.1.running_mean"].tolist()) for n in (0, 1, 3, 4)}
    assert len(means) > 1


def test_a_device_of_one_example_fails_with_batchnorm_and_the_others_train() -> None:
    devices = affine_devices(3)
    devices["d0"]["train"] = tuple(field[:1] for field in devices["d0"]["train"])
    task = affine_task(model=Normed, devices=devices)
    failed = []

    result = run(
        task,
        Partition(task.model()),
        FedAvg(batch_size=3),
        rounds=2,
        devices_per_round=3,
        watch=lambda line, *_: failed.append(line["failed"]),
    )

    reason = "The device has one training example: BatchNorm needs at least 2 in a batch to train."
    assert [failures for failures in failed if failures] == [{"d0": reason}] * 2
    assert result.shared["body.1.running_mean"].any()
