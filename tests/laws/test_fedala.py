"""FedALA against its algorithm in NumPy, and the mixture that a device predicts with."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from partita import Evaluation, FedAvg, LocalALA, Method, Partition, Plan, Result, Task, Training, pipeline
from partita.protocol import derive_seed
from small import Affine, affine_devices, affine_task, normed_task, same_bits

ROUNDS, COHORT, STEPS, RATE, MIXING_RATE, FIRST = 5, 3, 2, 0.1, 0.4, 4


def fedala(**options: Any) -> Method:
    own = {"sample": 1.0, "mixing_lr": MIXING_RATE, "first_passes": FIRST} | options
    return Method(
        local=partial(LocalALA, **own), shared_lr=RATE, shared_steps=STEPS, batch_size=1000, personal_epochs=0
    )


def train(
    method: Method, *, rounds: int = ROUNDS, unseen: float = 0.0, task: Task | None = None, **options: Any
) -> Result:
    task = task or affine_task()
    training = Training(method=method, rounds=rounds, devices_per_round=COHORT)
    plan = Plan(personalize=training, evaluate=Evaluation(unseen=unseen))
    return pipeline(task, Partition(task.model()), plan, **options)


class Reference:
    """The published algorithm with full batches, in float64; the slope is the one layer that is mixed."""

    def __init__(self) -> None:
        torch.manual_seed(derive_seed(1, "model"))
        start = Affine().state_dict()
        self.u = np.append(start["slope.weight"].double().numpy().ravel(), start["offset"].item())
        self.data = {}
        for device, splits in affine_devices().items():
            inputs, targets = (field.numpy().astype(float) for field in splits["train"])
            self.data[device] = np.column_stack([inputs, np.ones(len(targets))]), targets
        self.old: dict[str, np.ndarray] = {}
        self.mixing: dict[str, np.ndarray] = {}

    def gradient(self, device: str, w: np.ndarray) -> np.ndarray:
        columns, targets = self.data[device]
        return columns.T @ (columns @ w - targets) / len(targets)

    def start(self, device: str) -> np.ndarray:
        if device not in self.old:
            return self.u.copy()
        old = self.old[device]
        return np.append(old + (self.u[:3] - old) * self.mixing.get(device, np.ones(3)), self.u[3])

    def visit(self, device: str) -> np.ndarray:
        if device in self.old:
            passes = 1 if device in self.mixing else FIRST
            self.mixing.setdefault(device, np.ones(3))
            for _ in range(passes):
                slope = self.gradient(device, self.start(device))[:3]
                moved = self.mixing[device] - MIXING_RATE * slope * (self.u[:3] - self.old[device])
                self.mixing[device] = moved.clip(0, 1)
        w = self.start(device)
        for _ in range(STEPS):
            w = w - RATE * self.gradient(device, w)
        self.old[device] = w[:3]
        return w

    def run(self, rounds: int) -> None:
        for t in range(rounds):
            sampler = random.Random(derive_seed(1, "personalized", t, "cohort"))
            names = list(self.data)
            cohort = [names[i] for i in sampler.sample(range(len(names)), COHORT)]
            visited = [(self.visit(device), len(self.data[device][1])) for device in cohort]
            self.u = np.average([w for w, _ in visited], axis=0, weights=[n for _, n in visited])


@pytest.fixture(scope="module")
def reference() -> Reference:
    found = Reference()
    found.run(ROUNDS)
    return found


@pytest.fixture(scope="module")
def result() -> Result:
    return train(fedala())


def test_fedala_is_its_algorithm(result: Result, reference: Reference) -> None:
    np.testing.assert_allclose(result.shared["slope.weight"].numpy().ravel(), reference.u[:3], atol=1e-5)
    np.testing.assert_allclose(result.shared["offset"].numpy(), reference.u[3:], atol=1e-5)
    # Some W are at a bound, and some between the bounds: the clipping and the steps both count.
    mixing = np.concatenate(list(reference.mixing.values()))
    assert ((mixing > 0) & (mixing < 1)).any()
    assert (mixing == 1).any()
    for device, mixed in reference.mixing.items():
        kept = result._record.kept(device) or {}
        np.testing.assert_allclose(kept["ala/mixing/slope.weight"].numpy().ravel(), mixed, atol=1e-5)
        np.testing.assert_allclose(kept["ala/old/slope.weight"].numpy()[0], reference.old[device], atol=1e-5)


def test_a_device_is_evaluated_with_the_mixture_that_its_model_is(
    result: Result, reference: Reference
) -> None:
    rows = [r for r in result.devices.to_pylist() if (r["stage"], r["split"]) == ("personalized", "test")]
    assert len(rows) == 6
    for row in rows:
        inputs, targets = affine_devices()[row["device"]]["test"]
        own = reference.start(row["device"])
        errors = inputs.double().numpy() @ own[:3] + own[3] - targets.double().numpy()
        assert row["loss"] == pytest.approx(0.5 * (errors**2).mean(), rel=1e-4)
        predicted = result.model(row["device"])(inputs).detach().double().numpy()
        np.testing.assert_allclose(predicted - targets.double().numpy(), errors, atol=1e-5)


def test_only_the_higher_layers_and_their_weights_are_kept_and_nothing_more_is_sent(result: Result) -> None:
    names = {"ala/old/slope.weight", "ala/mixing/slope.weight", "ala/learned"}
    visited = {device for line in result._record.rounds() for device in line["heard"] if line["loss"]}

    assert {device for device in affine_devices() if result._record.kept(device)} == visited
    assert all(set(result._record.kept(device) or {}) == names for device in visited)
    lines = [line for line in result._record.rounds() if line["work"] == "update"]
    assert [line["bytes"]["up"] for line in lines] == [COHORT * 16] * ROUNDS


def test_with_w_held_at_one_fedala_is_fedavg() -> None:
    tiny = train(fedala(mixing_lr=1e-30))
    averaged = train(fedala(first_passes=1, mixing_lr=1e-30, layers=2))

    fedavg = train(FedAvg(shared_lr=RATE, shared_steps=STEPS, batch_size=1000))
    assert same_bits(tiny.shared, fedavg.shared)
    assert same_bits(averaged.shared, fedavg.shared)
    assert tiny.devices == fedavg.devices


def test_an_unseen_device_predicts_with_the_shared_model() -> None:
    task = affine_task(devices=affine_devices(12))
    result = train(fedala(), unseen=0.3, task=task)

    rows = result._record.measurements.to_pylist()
    unseen = {row["device"] for row in rows if row["stage"] == "personalized" and not row["seen"]}
    assert unseen
    assert all(same_bits(dict(result.model(device).state_dict()), result.shared) for device in unseen)


def test_statistics_stay_while_w_is_learned_and_move_in_training() -> None:
    # Two steps a visit of each of the four devices, whatever number of passes learns W.
    task = normed_task()
    counts = [
        train(fedala(first_passes=passes, layers=2), task=task, rounds=2).shared["body.1.num_batches_tracked"]
        for passes in (1, 7)
    ]

    assert counts[0].item() == counts[1].item() == 2 * STEPS


def test_workers_and_a_resumed_run_give_the_same_bits(tmp_path: Path) -> None:
    whole = train(fedala(sample=0.5), rounds=3, out=tmp_path / "whole")
    parallel = train(fedala(sample=0.5), rounds=3, out=tmp_path / "parallel", workers=2)

    def stop(line: Any, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(fedala(sample=0.5), rounds=3, out=tmp_path / "resumed", watch=stop)
    resumed = train(fedala(sample=0.5), rounds=3, out=tmp_path / "resumed", resume=True)

    for other in (parallel, resumed):
        assert same_bits(other.shared, whole.shared)
        assert other.devices == whole.devices
    for file in (tmp_path / "whole/personal").iterdir():
        for name in ("parallel", "resumed"):
            assert (tmp_path / name / "personal" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("options", [{"layers": 0}, {"sample": 0.0}, {"sample": 1.5}, {"mixing_lr": 0.0}])
def test_a_bad_hyperparameter_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
        fedala(**options)
