"""The server's optimizers against an independent NumPy computation of their published steps."""

import numpy as np
import pytest
import torch

from partita.server.optimizers import Adagrad, Adam, Averaging, FedAdam, ServerOptimizer, Yogi

CHANGES = [np.array([0.5, -0.25, 0.0]), np.array([0.25, 0.5, -1.0]), np.array([-1.0, 0.125, 0.5])]


def run(optimizer: ServerOptimizer) -> np.ndarray:
    shared = {"u": torch.tensor([1.0, 2.0, 3.0])}
    state = optimizer.init(shared)
    for change in CHANGES:
        shared, state = optimizer.step(shared, {"u": torch.tensor(change, dtype=torch.float32)}, state)
    return shared["u"].numpy()


def test_averaging_adds_the_mean_change() -> None:
    np.testing.assert_array_equal(run(Averaging()), [0.75, 2.375, 2.5])


def test_a_server_rate_scales_the_change() -> None:
    np.testing.assert_array_equal(run(Averaging(lr=0.5)), [0.875, 2.1875, 2.75])


def test_momentum_keeps_part_of_the_direction() -> None:
    # m: 0.5, 0.25 + 0.25, -1 + 0.25 for the first element at momentum 1/2; others alike.
    u, m = np.array([1.0, 2.0, 3.0]), np.zeros(3)
    for d in CHANGES:
        m = 0.5 * m + d
        u = u + 0.25 * m

    np.testing.assert_allclose(run(Averaging(lr=0.25, momentum=0.5)), u, rtol=1e-6)


def test_adam_is_adam_with_bias_correction_on_the_change() -> None:
    u, m, v = np.array([1.0, 2.0, 3.0]), np.zeros(3), np.zeros(3)
    for t, d in enumerate(CHANGES, start=1):
        m = 0.9 * m + 0.1 * d
        v = 0.999 * v + 0.001 * d**2
        u = u + 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)

    np.testing.assert_allclose(run(Adam(lr=0.1)), u, rtol=1e-5)


def test_adam_is_torchs_adam_with_the_change_as_negative_gradient() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    reference = torch.optim.Adam([parameter], lr=0.1)
    for change in CHANGES:
        parameter.grad = -torch.tensor(change, dtype=torch.float32)
        reference.step()

    np.testing.assert_allclose(run(Adam(lr=0.1)), parameter.detach().numpy(), rtol=1e-5)


def test_fedadam_has_no_bias_correction_and_starts_at_tau_squared() -> None:
    # Algorithm 2 of Reddi et al., with the settings of their experiments.
    u, m, v = np.array([1.0, 2.0, 3.0]), np.zeros(3), np.full(3, 1e-3**2)
    for d in CHANGES:
        m = 0.9 * m + 0.1 * d
        v = 0.99 * v + 0.01 * d**2
        u = u + 0.1 * m / (np.sqrt(v) + 1e-3)

    np.testing.assert_allclose(run(FedAdam(lr=0.1)), u, rtol=1e-5)


def test_the_first_step_of_fedadam_by_hand() -> None:
    # With d = 3/4, beta1 = beta2 = 1/2 and tau = 1/4: m = 3/8, v = 1/2 * 1/16 + 1/2 * 9/16 = 5/16,
    # u = 0 + 2 * (3/8) / (sqrt(5)/4 + 1/4) = 3 / (sqrt(5) + 1).
    optimizer = FedAdam(lr=2.0, beta1=0.5, beta2=0.5, tau=0.25)
    shared = {"u": torch.tensor([0.0])}

    moved, state = optimizer.step(shared, {"u": torch.tensor([0.75])}, optimizer.init(shared))

    assert moved["u"].item() == pytest.approx(3 / (5**0.5 + 1), rel=1e-6)
    assert {name: tensor.item() for name, tensor in state.items()} == {"first/u": 0.375, "second/u": 0.3125}


def test_adagrad_adds_up_squares() -> None:
    u, v = np.array([1.0, 2.0, 3.0]), np.full(3, 1e-3**2)
    for d in CHANGES:
        v = v + d**2
        u = u + 0.1 * d / (np.sqrt(v) + 1e-3)

    np.testing.assert_allclose(run(Adagrad(lr=0.1)), u, rtol=1e-5)


def test_yogi_moves_its_second_moment_by_sign() -> None:
    u, m, v = np.array([1.0, 2.0, 3.0]), np.zeros(3), np.full(3, 1e-3**2)
    for d in CHANGES:
        m = 0.9 * m + 0.1 * d
        v = v - 0.01 * d**2 * np.sign(v - d**2)
        u = u + 0.1 * m / (np.sqrt(v) + 1e-3)

    np.testing.assert_allclose(run(Yogi(lr=0.1)), u, rtol=1e-5)


@pytest.mark.parametrize("kind", [Averaging, Adam, FedAdam, Adagrad, Yogi])
@pytest.mark.parametrize("lr", [-1.0, float("nan")])
def test_a_bad_rate_is_refused(kind: type, lr: float) -> None:
    with pytest.raises(ValueError, match="`server_lr` must be"):
        kind(lr=lr)


def test_a_bad_momentum_is_refused() -> None:
    with pytest.raises(ValueError, match="`server_momentum` must be"):
        Averaging(momentum=1.0)


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (Adam, {"beta1": 1.0}, "`server_beta1` must be from 0 to below 1, got 1.0."),
        (Adam, {"beta2": -0.1}, "`server_beta2` must be from 0 to below 1, got -0.1."),
        (Adam, {"eps": 0.0}, "`server_eps` must be a finite number above 0, got 0.0."),
        (FedAdam, {"beta1": -0.5}, "`server_beta1` must be from 0 to below 1, got -0.5."),
        (FedAdam, {"tau": 0.0}, "`server_tau` must be a finite number above 0, got 0.0."),
        (Adagrad, {"tau": float("inf")}, "`server_tau` must be a finite number above 0, got inf."),
        (Yogi, {"beta2": 2.0}, "`server_beta2` must be"),
        (Yogi, {"tau": -1.0}, "`server_tau` must be"),
    ],
)
def test_settings_out_of_range_are_refused(kind: type, settings: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind(lr=0.1, **settings)
