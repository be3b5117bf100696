"""Methods of other papers on losses whose minima are known: pFedMe, Ditto, FedProx."""

from collections.abc import Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from partita import (
    Averaging,
    FedAvg,
    Finetuning,
    LocalMoreau,
    Method,
    Partition,
    Plan,
    Result,
    Steps,
    Training,
    full,
    pipeline,
    run,
)
from partita.models.full import proximity
from small import Point, affine_devices, affine_task, built, normed_task, point_task, same_bits, square_error

BATCH = torch.zeros(1, 1), torch.tensor([3.0])
TARGETS = {"d0": 3.0, "d1": -1.0, "d2": 5.0}


def on_full(count: int, *, local_steps: int, proximal: float = 2.0) -> Any:
    """LocalMoreau at the target 3 from theta = w = 0, with the rates 1/4 and 1/4."""
    partition = full(Point(), proximal=proximal).partition
    model = partition.prepare(Point())
    loss = lambda net, batch: square_error(net, batch) + proximity(net, strength=proximal)  # noqa: E731
    update = LocalMoreau(personal=Steps(count=count, lr=0.25), shared=Steps(count=local_steps, lr=0.25))
    losses = update(model, partition, repeat(BATCH), loss)
    return model, losses


def test_many_steps_on_theta_reach_the_proximal_point_and_w_moves_toward_it() -> None:
    # With a = 3, lambda = 2, w = 0: theta = (a + lambda w) / (1 + lambda) = 1,
    # and w <- w - 1/4 lambda (w - theta) = 1/2.
    model, losses = on_full(12, local_steps=1)

    assert model.personal.w.item() == pytest.approx(1.0, abs=1e-6)
    assert model.shared.w.item() == pytest.approx(0.5, abs=1e-6)
    assert len(losses) == 12


def test_the_next_local_step_has_the_proximal_point_of_the_new_w() -> None:
    # From w = 1/2: theta = (3 + 2/2) / 3 = 4/3, and w <- 1/2 - 1/4 * 2 (1/2 - 4/3) = 11/12.
    model, _ = on_full(12, local_steps=2)

    assert model.personal.w.item() == pytest.approx(4 / 3, abs=1e-6)
    assert model.shared.w.item() == pytest.approx(11 / 12, abs=1e-6)


def test_theta_continues_from_one_local_step_to_the_next() -> None:
    # theta: 0 - 1/4 (0 - 3 + 2 (0 - 0)) = 3/4;                      w: 0 - 1/4 * 2 (0 - 3/4)       = 3/8
    # theta: 3/4 - 1/4 (3/4 - 3 + 2 (3/4 - 3/8)) = 3/4 + 3/8 = 9/8;  w: 3/8 - 1/4 * 2 (3/8 - 9/8)   = 3/4
    model, _ = on_full(1, local_steps=2)

    assert (model.personal.w.item(), model.shared.w.item()) == (1.125, 0.75)


def moreau(**settings: Any) -> Method:
    return Method(
        local=LocalMoreau,
        shared_lr=0.25,
        personal_lr=0.25,
        personal_steps=12,
        shared_steps=2,
        stateful=False,
        **settings,
    )


def run_pfedme(*, rounds: int = 3, beta: float = 1.0, epochs: int = 0, **options: Any) -> Result:
    task = point_task(TARGETS, model=Point)
    personalize = Training(method=moreau(), rounds=rounds, devices_per_round=3, server=Averaging(lr=beta))
    finetune = Finetuning(personal_lr=0.25, epochs=epochs, batch_size=100)
    return pipeline(
        task,
        full(Point(), proximal=2.0, follows=True),
        Plan(personalize=personalize, finetune=finetune),
        **options,
    )


def pfedme_of(*, rounds: int, beta: float) -> float:
    """The published w after some rounds from 0: lambda = 2, eta = 1/4, two local steps, 2, 3, 4 examples."""
    w = 0.0
    for _ in range(rounds):
        local = np.full(3, w)
        for _ in range(2):
            theta = (np.array([3.0, -1.0, 5.0]) + 2 * local) / 3
            local -= 0.25 * 2 * (local - theta)
        w = (1 - beta) * w + beta * np.average(local, weights=[2, 3, 4])
    return w


@pytest.mark.parametrize("beta", [1.0, 0.5, 2.0])
def test_pfedmes_server_mixes_w_with_the_mean_by_beta(beta: float) -> None:
    result = run_pfedme(beta=beta)

    assert result.shared["shared.w"].item() == pytest.approx(pfedme_of(rounds=3, beta=beta), abs=1e-5)


def test_pfedme_keeps_nothing_on_a_device_and_is_evaluated_by_w_itself(tmp_path: Path) -> None:
    result = run_pfedme(out=tmp_path / "run")

    assert list((tmp_path / "run/personal").iterdir()) == []
    w = result.shared["shared.w"].item()
    for device, target in TARGETS.items():
        assert result.personal(device)["personal.w"].item() == w
        rows = {
            r["split"]: r
            for r in result.devices.to_pylist()
            if (r["stage"], r["device"]) == ("personalized", device)
        }
        assert rows["test"]["model"] == "personal"
        assert rows["test"]["metric"] == pytest.approx(-abs(w - target), abs=1e-6)
        assert rows["test"]["loss"] == pytest.approx(0.5 * (w - target) ** 2, rel=1e-5)


def test_finetuning_after_pfedme_begins_with_the_last_w(tmp_path: Path) -> None:
    result = run_pfedme(epochs=2, out=tmp_path / "run")

    w = pfedme_of(rounds=3, beta=1.0)
    for device, a in TARGETS.items():
        once = w - 0.25 * (w - a)
        twice = once - 0.25 * (once - a + 2 * (once - w))
        assert result.personal(device)["personal.w"].item() == pytest.approx(twice, abs=1e-5)
    assert len(list((tmp_path / "run/personal").iterdir())) == 3


def least_squares(device: str, *, strength: float, toward: np.ndarray) -> np.ndarray:
    """The minimum of F_i(v) + (strength / 2) ||v - toward||^2, v being the slope and the offset."""
    inputs, targets = (field.numpy().astype(float) for field in affine_devices()[device]["train"])
    columns = np.column_stack([inputs, np.ones(len(targets))])
    curvature = columns.T @ columns / len(targets) + strength * np.eye(4)
    return np.linalg.solve(curvature, columns.T @ targets / len(targets) + strength * toward)


def flat(params: Mapping[str, Tensor], prefix: str) -> np.ndarray:
    names = ("slope.weight", "offset")
    return torch.cat([params[f"{prefix}.{name}"].flatten() for name in names]).double().numpy()


@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_ditto_reaches_the_minimum_between_a_devices_loss_and_the_pretrained_model(strength: float) -> None:
    task = affine_task()
    plan = Plan(
        pretrain=Training(method=FedAvg(shared_lr=0.1), rounds=3, devices_per_round=3),
        finetune=Finetuning(personal_lr=0.25, epochs=70, batch_size=100),
    )

    result = pipeline(task, full(task.model(), proximal=strength), plan)

    pretrained = flat(result.shared, "shared")
    for device in task.devices:
        expected = least_squares(device, strength=strength, toward=pretrained)
        np.testing.assert_allclose(flat(result.personal(device), "personal"), expected, atol=2e-4)
        assert np.abs(expected - pretrained).max() > 0.05


def run_built(method: str, **sections: Any) -> Result:
    made = built(method, **sections)
    return pipeline(made.task, made.personalization, made.plan)


def test_ditto_without_a_pull_is_finetune_bit_for_bit() -> None:
    task = "small:normed_task"
    ditto, finetune, pulled = (
        run_built("ditto", task=task, partition={"proximal": 0.0}),
        run_built("finetune", task=task),
        run_built("ditto", task=task, partition={"proximal": 1.0}),
    )

    assert same_bits(ditto.shared, finetune.shared)
    assert ditto.devices.equals(finetune.devices)
    for device in ("d0", "d4"):
        assert same_bits(ditto.personal(device), finetune.personal(device))
        assert not same_bits(ditto.personal(device), pulled.personal(device))


def test_fedprox_is_pulled_toward_the_model_sent_in_this_round() -> None:
    # y = 3, lr = 1/2, mu = 2. In the first round w is held to 0:
    #   w: 0 + 1/2 * 3 = 3/2;  3/2 - 1/2 (-3/2 + 2 * 3/2) = 3/4;  3/4 - 1/2 (-9/4 + 2 * 3/4) = 9/8
    # in the second to 9/8, each step in 64ths:
    #   w: 72 + 60 = 132;  132 - 1/2 (-60 + 2 * 60) = 102;  102 - 1/2 (-90 + 2 * 30) = 117
    task = point_task(model=Point)
    method = FedAvg(shared_lr=0.5, shared_steps=3, proximal=2.0)

    once, twice = (run(task, Partition(Point()), method, rounds=rounds) for rounds in (1, 2))

    assert once.shared["w"].item() == 9 / 8
    assert twice.shared["w"].item() == 117 / 64


def test_fedprox_with_mu_0_is_fedavg_bit_for_bit() -> None:
    task = "small:normed_task"
    average, without, held = (
        run_built("fedavg", task=task),
        run_built("fedprox", task=task, personalize={"proximal": 0.0}),
        run_built("fedprox", task=task, personalize={"proximal": 1.0}),
    )

    assert same_bits(without.shared, average.shared)
    assert without.devices.equals(average.devices)
    assert not same_bits(held.shared, average.shared)


def test_pfedme_steps_on_w_by_plain_sgd_whatever_moves_theta() -> None:
    # Theta ends 0.3 from w = 0 (three steps of Adam at 0.1, each of its rate), so with lambda 2 and eta 0.25
    # w moves by 0.25 * 2 * 0.3 = 0.15; a step of Adam on w would be one of eta, 0.25.
    partition = full(Point(), proximal=2.0).partition
    model = partition.prepare(Point())
    adam = torch.optim.Adam
    update = LocalMoreau(
        personal=Steps(count=3, lr=0.1, optimizer=adam), shared=Steps(count=1, lr=0.25, optimizer=adam)
    )
    far = torch.zeros(1, 1), torch.tensor([100.0])

    update(
        model,
        partition,
        repeat(far),
        lambda net, batch: square_error(net, batch) + proximity(net, strength=2.0),
    )

    assert model.get_parameter("personal.w").item() == pytest.approx(0.3, abs=1e-3)
    assert model.get_parameter("shared.w").item() == pytest.approx(0.15, abs=1e-3)


def test_pfedme_averages_the_statistics_of_normalization_layers() -> None:
    task = normed_task()
    method = Method(local=LocalMoreau, shared_lr=0.5, personal_steps=2, batch_size=100, stateful=False)

    result = run(task, full(task.model(), follows=True), method, rounds=2, devices_per_round=3)

    means = [t for name, t in result.shared.items() if name.endswith("running_mean")]
    assert means
    assert all(mean.abs().max() > 0 for mean in means)
