"""Synthetic tasks: the closed-form optimum is correct, and training finds it."""

import math
import tracemalloc
from unittest import mock

import numpy as np
import pytest
import torch

from partita import FedAlt, Partition, run
from partita.data.cache import ExampleCache
from partita.tasks.synthetic import best_boundary, find_optimum, mixture, quadratic, synthetic


def test_the_optimum_is_that_of_one_large_least_squares_problem() -> None:
    task = quadratic(devices=4, examples=15, shared=3, personal=2)
    rows, targets = [], []
    for number, device in enumerate(task.devices):
        inputs, own = (part.double().numpy() for part in task.devices[device]["train"])
        wide = np.zeros((len(inputs), 3 + 2 * 4))
        wide[:, :3] = inputs[:, :3]
        wide[:, 3 + 2 * number : 5 + 2 * number] = inputs[:, 3:]
        rows.append(wide)
        targets.append(own)
    matrix, vector = np.concatenate(rows), np.concatenate(targets)
    best, squares, *_ = np.linalg.lstsq(matrix, vector, rcond=None)

    optimum = find_optimum(task)

    assert optimum.shared.numpy() == pytest.approx(best[:3], abs=1e-5)
    assert torch.stack(list(optimum.personal.values())).flatten().numpy() == pytest.approx(best[3:], abs=1e-5)
    assert optimum.value == pytest.approx(0.5 * squares[0] / len(vector), rel=1e-6)


@pytest.mark.parametrize("form", ["quadratic", "mixture"])
def test_data_is_generated_on_access_with_the_same_values(form: str) -> None:
    whole, task = synthetic(form=form, devices=4), synthetic(form=form, devices=100_000)

    for device in ("device-0003", "device-0000", "device-0003"):
        for split in ("train", "test"):
            for one, other in zip(whole.devices[device][split], task.devices[device][split], strict=True):
                assert torch.equal(one, other)
    assert len(task.devices) == 100_000
    assert task.devices.ids[-1] == "device-99999"
    assert set(task.devices["device-99999"]) == {"train", "test"}
    for unknown in ("device-100000", "device-3", "device-00003", "device--001", "", "ada"):
        with pytest.raises(KeyError):
            task.devices[unknown]


def test_the_quadratic_data_follows_its_formula() -> None:
    task = quadratic(devices=2, examples=3, shared=2, personal=1, noise=0.0, spread=0.0)
    # Without noise and spread the targets are the first two inputs times one u, the same for all devices.
    found = []
    for device in task.devices:
        inputs, targets = task.devices[device]["train"]
        found.append(torch.linalg.lstsq(inputs[:, :2].double(), targets.double()[:, None]).solution)

    assert torch.allclose(found[0], found[1], atol=1e-5)
    assert not torch.equal(task.devices["device-0000"]["train"][0], task.devices["device-0001"]["train"][0])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_devices_that_were_visited() -> None:
    task = quadratic(devices=3000, examples=10)
    list(map(task.devices.__getitem__, task.devices.ids[:100]))
    tracemalloc.start()
    with mock.patch.object(ExampleCache, "processes", 10_000):  # The cache may have 25,600 bytes.
        for device in task.devices:
            task.devices[device]

    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown < 300_000  # 3,000 devices would take more than 3,000 x 4 tensors of 80 bytes.


@pytest.mark.parametrize("settings", [{"devices": 10**15}, {"examples": 10**9}, {"shared": 10**9}])
def test_sizes_that_no_memory_has_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="`devices` must be at most 100,000,000"):
        quadratic(**settings)


def test_the_constants_are_the_largest_norms_of_the_second_derivatives() -> None:
    task = quadratic(devices=3, shared=2, personal=2)
    optimum = find_optimum(task)
    tops = []
    for device in task.devices:
        inputs = task.devices[device]["train"][0].double().numpy()
        second = inputs.T @ inputs / len(inputs)
        tops.append(
            (
                np.linalg.norm(second[:2, :2], 2),
                np.linalg.norm(second[2:, 2:], 2),
                np.linalg.norm(second[:2, 2:], 2),
            )
        )

    largest = np.max(tops, axis=0)

    assert (optimum.smoothness_shared, optimum.smoothness_personal, optimum.coupling) == pytest.approx(
        tuple(largest)
    )


@pytest.mark.slow
def test_fedalt_finds_the_optimum() -> None:
    task = quadratic(devices=4, examples=30, noise=0.5)
    optimum = find_optimum(task)
    method = FedAlt(shared_lr=0.1, batch_size=30, personal_steps=3, shared_steps=1)

    result = run(task, Partition(task.model(), personal="v"), method, rounds=150, devices_per_round=4)

    assert torch.allclose(result.shared["u"], optimum.shared, atol=1e-3)
    assert all(torch.allclose(result.personal(d)["v"], optimum.personal[d], atol=1e-3) for d in task.devices)


def test_the_best_boundary_of_a_mixture_has_the_stated_accuracy() -> None:
    task = mixture(devices=5, examples=4000, distance=2.0, spread=3.0)
    u, v = best_boundary(devices=5, distance=2.0, spread=3.0)
    model = task.model()
    right = losses = 0.0

    for device in task.devices:
        model.load_state_dict({"u": u, "v": v[device]})
        inputs, labels = task.devices[device]["test"]
        right += (model(inputs).argmax(dim=1) == labels).double().mean().item() / 5
        losses += task.loss(model, (inputs, labels)).item() / 5
        for name, parameter in model.named_parameters():
            (gradient,) = torch.autograd.grad(task.loss(model, (inputs, labels)), parameter)
            assert gradient.abs().max() < 0.2, name

    # Phi(1)
    assert right == pytest.approx(0.5 * (1 + math.erf(1 / math.sqrt(2))), abs=0.01)
    # The loss of the true log odds, 2 + 2 g with g of unit variance: E log(1 + exp(-2 - 2 g)).
    noise = np.random.default_rng(0).standard_normal(400_000)
    assert losses == pytest.approx(np.log1p(np.exp(-2 - 2 * noise)).mean(), abs=0.02)


def test_the_same_seed_gives_the_same_data_and_more_devices_change_no_other() -> None:
    few, many = quadratic(devices=2, seed=3), quadratic(devices=5, seed=3)

    assert torch.equal(few.devices["device-0001"]["train"][0], many.devices["device-0001"]["train"][0])
    assert not torch.equal(
        few.devices["device-0001"]["train"][0], quadratic(seed=4).devices["device-0001"]["train"][0]
    )


@pytest.mark.parametrize(
    "settings", [{"devices": 0}, {"examples": 0}, {"noise": -1.0}, {"spread": float("nan")}]
)
def test_invalid_sizes_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        quadratic(**settings)
