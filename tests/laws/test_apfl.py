"""APFL against its algorithm by hand and in NumPy, and the mixture that a device predicts with."""

import random
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from partita import (
    Carried,
    Evaluation,
    FedAvg,
    Finetuning,
    LocalAPFL,
    Method,
    Partition,
    Plan,
    Result,
    Steps,
    Task,
    Training,
    full,
    pipeline,
)
from partita.protocol import derive_seed
from small import Affine, Point, affine_devices, affine_task, normed_task, same_bits, square_error

ROUNDS, COHORT, STEPS, RATE, OWN_RATE = 4, 3, 3, 0.1, 0.3


def test_two_steps_by_hand() -> None:
    # At the target 3 from v = w = 0 and alpha = 1/2, with all rates 1/4; m is the mixture:
    #   m = 0:     w = 0 + 3/4 = 3/4,    v = 0 + 1/4 1/2 3 = 3/8,         alpha = 1/2 + 1/4 (0 - 0) 3 = 1/2
    #   m = 9/16:  w = 3/4 + 9/16,       v = 3/8 + 1/4 1/2 39/16,         alpha = 1/2 + 1/4 (3/8 - 3/4) 39/16
    own = full(Point(), proximal=0.0).partition
    model = own.prepare(Point())
    carried = Carried(kept={"apfl/alpha": torch.tensor(0.5)}, sent={})
    steps = Steps(count=2, lr=0.25)
    update = LocalAPFL(personal=steps, shared=steps, carried=carried)

    losses = update(model, own, repeat((torch.zeros(1, 1), torch.tensor([3.0]))), square_error)

    assert model.shared.w.item() == 3 / 4 + 9 / 16
    assert model.personal.w.item() == 3 / 8 + 39 / 128
    assert carried.kept["apfl/alpha"].item() == 1 / 2 - 3 / 32 * 39 / 16
    assert losses == [9 / 2, (39 / 16) ** 2 / 2]


def apfl(**options: Any) -> Method:
    return Method(
        local=partial(LocalAPFL, **options),
        shared_lr=RATE,
        personal_lr=OWN_RATE,
        shared_steps=STEPS,
        personal_steps=STEPS,
        batch_size=1000,
    )


def train(
    method: Method,
    *,
    rounds: int = ROUNDS,
    task: Task | None = None,
    finetune: Finetuning | None = None,
    unseen: float = 0.0,
    **options: Any,
) -> Result:
    task = task or affine_task()
    plan = Plan(
        personalize=Training(method=method, rounds=rounds, devices_per_round=COHORT),
        finetune=finetune,
        evaluate=Evaluation(unseen=unseen),
    )
    return pipeline(task, full(task.model(), proximal=0.0, follows=True), plan, **options)


class Reference:
    """The published algorithm with full batches, in float64; a model is the slope and the offset."""

    def __init__(self, rounds: int = ROUNDS) -> None:
        torch.manual_seed(derive_seed(1, "model"))
        start = Affine().state_dict()
        self.w = np.append(start["slope.weight"].double().numpy().ravel(), start["offset"].item())
        self.data = {}
        for device, splits in affine_devices().items():
            inputs, targets = (field.numpy().astype(float) for field in splits["train"])
            self.data[device] = np.column_stack([inputs, np.ones(len(targets))]), targets
        self.own: dict[str, tuple[np.ndarray, float]] = {}
        for t in range(rounds):
            sampler, names = random.Random(derive_seed(1, "personalized", t, "cohort")), list(self.data)
            cohort = [names[i] for i in sampler.sample(range(len(names)), COHORT)]
            visited = [(self.visit(device), len(self.data[device][1])) for device in cohort]
            self.w = np.average([w for w, _ in visited], axis=0, weights=[n for _, n in visited])

    def gradient(self, device: str, model: np.ndarray) -> np.ndarray:
        columns, targets = self.data[device]
        return columns.T @ (columns @ model - targets) / len(targets)

    def visit(self, device: str) -> np.ndarray:
        w = self.w
        v, alpha = self.own.get(device, (w, 0.5))
        for _ in range(STEPS):
            slope = self.gradient(device, alpha * v + (1 - alpha) * w)
            moved = alpha - OWN_RATE * slope @ (v - w)
            w, v = w - RATE * self.gradient(device, w), v - OWN_RATE * alpha * slope
            alpha = min(max(moved, 0.0), 1.0)
        self.own[device] = v, alpha
        return w

    def mixture(self, device: str) -> np.ndarray:
        v, alpha = self.own.get(device, (self.w, 0.5))
        return alpha * v + (1 - alpha) * self.w


def flat(model: Any) -> np.ndarray:
    return np.append(model["slope.weight"].double().numpy().ravel(), model["offset"].item())


def test_apfl_is_its_algorithm() -> None:
    result, reference = train(apfl()), Reference()

    w = {name.removeprefix("shared."): tensor for name, tensor in result.shared.items()}
    np.testing.assert_allclose(flat(w), reference.w, atol=1e-5)
    assert len(reference.own) > COHORT
    for device, (v, alpha) in reference.own.items():
        kept = {name.removeprefix("personal."): t for name, t in (result._record.kept(device) or {}).items()}
        np.testing.assert_allclose(flat(kept), v, atol=1e-5)
        assert kept["apfl/alpha"].item() == pytest.approx(alpha, abs=1e-5)
        assert alpha != 0.5
    for row in result.devices.to_pylist():
        if (row["stage"], row["split"]) == ("personalized", "test"):
            own = reference.mixture(row["device"])
            np.testing.assert_allclose(flat(result.model(row["device"]).state_dict()), own, atol=1e-5)
            inputs, targets = (field.double().numpy() for field in affine_devices()[row["device"]]["test"])
            errors = inputs @ own[:3] + own[3] - targets
            assert row["loss"] == pytest.approx(0.5 * (errors**2).mean(), rel=1e-4)


def test_the_shared_model_is_that_of_fedavg_and_alpha_alone_is_kept_besides_v() -> None:
    result = train(apfl())
    task = affine_task()
    fedavg = FedAvg(shared_lr=RATE, shared_steps=STEPS, batch_size=1000)
    training = Training(method=fedavg, rounds=ROUNDS, devices_per_round=COHORT)
    averaged = pipeline(task, Partition(task.model()), Plan(personalize=training))

    assert same_bits({f"shared.{name}": t for name, t in averaged.shared.items()}, result.shared)
    kept = [set(result._record.kept(device) or {}) for device in affine_devices()]
    assert {frozenset(names) for names in kept if names} == {
        frozenset({"personal.slope.weight", "personal.offset", "apfl/alpha"})
    }
    updates = [line for line in result._record.rounds() if line["work"] == "update"]
    assert [set(line["bytes"].values()) for line in updates] == [{COHORT * 16}] * ROUNDS


def test_both_models_have_statistics_of_their_own() -> None:
    result = train(apfl(), rounds=1, task=normed_task())

    asked = next(line["heard"] for line in result._record.rounds() if line["work"] == "update")
    kept = result._record.kept(asked[0]) or {}
    counted = "body.1.num_batches_tracked"
    assert kept[f"personal.{counted}"].item() == result.shared[f"shared.{counted}"].item() == STEPS
    own, shared = kept["personal.body.1.running_mean"], result.shared["shared.body.1.running_mean"]
    assert not own.equal(shared)
    assert result.model(asked[0]).get_buffer("body.1.running_mean").equal(own)


def test_fine_tuning_begins_with_the_mixture_and_an_unseen_device_with_the_shared_model() -> None:
    task = affine_task(devices=affine_devices(12))
    still = Finetuning(personal_lr=0.0, epochs=1)
    result = train(apfl(), task=task, finetune=still, unseen=0.3)

    rows = result._record.measurements.to_pylist()
    losses = {(r["stage"], r["device"]): r["loss"] for r in rows if r["split"] == "test"}
    unseen = {r["device"] for r in rows if not r["seen"]}
    assert unseen
    for device in task.devices:
        assert losses["finetuned", device] == pytest.approx(losses["personalized", device], rel=1e-6)
        if device in unseen:
            shared = {name.removeprefix("shared."): tensor for name, tensor in result.shared.items()}
            assert same_bits(dict(result.model(device).state_dict()), shared)


def test_workers_and_a_resumed_run_give_the_same_bits(tmp_path: Path) -> None:
    whole = train(apfl(), rounds=3, out=tmp_path / "whole")
    parallel = train(apfl(), rounds=3, out=tmp_path / "parallel", workers=2)

    def stop(line: Any, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(apfl(), rounds=3, out=tmp_path / "resumed", watch=stop)
    resumed = train(apfl(), rounds=3, out=tmp_path / "resumed", resume=True)

    for other in (parallel, resumed):
        assert same_bits(other.shared, whole.shared)
        assert other.devices == whole.devices
    for file in (tmp_path / "whole/personal").iterdir():
        for name in ("parallel", "resumed"):
            assert (tmp_path / name / "personal" / file.name).read_bytes() == file.read_bytes()


def test_another_partition_and_a_bad_alpha_are_refused() -> None:
    task = affine_task()
    plan = Plan(personalize=Training(method=apfl(), rounds=1, devices_per_round=2))

    with pytest.raises(ValueError, match="APFL needs the partition `full`"):
        pipeline(task, Partition(task.model(), personal="offset"), plan)
    with pytest.raises(ValueError, match="`alpha` must be from 0 to 1, got 2.0"):
        apfl(alpha=2.0)
