"""The server's step: from the mean change of the shared part to the new shared part.

Adaptive Federated Optimization
    S. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan. ICLR 2021.
    https://arxiv.org/abs/2003.00295

`FedAdam`, `Adagrad` and `Yogi` are its Algorithm 2, with v starting at tau^2 and no bias correction. `Adam`
is what the personalization paper calls FedAdam: torch's Adam, with the mean change as the negative gradient.

Federated Learning with Partial Model Personalization
    K. Pillutla, K. Malik, A. Mohamed, M. Rabbat, M. Sanjabi, L. Xiao. ICML 2022.
    https://arxiv.org/abs/2204.03809

Adam: A Method for Stochastic Optimization
    D. P. Kingma, J. Ba. ICLR 2015.
    https://arxiv.org/abs/1412.6980

Every optimizer is a frozen value: its state goes in as named tensors and comes out as new ones.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from partita.params import Params
from partita.protocol import check_number


@runtime_checkable
class ServerOptimizer(Protocol):
    """Moves the shared part along the mean change.

    In a config, its arguments are keys with `server_` before them: `server_lr` is `lr`.
    """

    def init(self, shared: Params) -> dict[str, Tensor]:
        """Return the state before the first step."""
        ...

    def step(
        self, shared: Params, change: Params, state: Params
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the new shared part and the new state."""
        ...


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """FedAvg: add the mean change times a learning rate, with optional momentum."""

    lr: float = 1.0
    """The server's learning rate; 1 takes the mean as it is."""
    momentum: float = 0.0
    """The share of the last step's direction that is kept."""

    def __post_init__(self) -> None:
        _check_rate(self.lr)
        _check_share("server_momentum", self.momentum)

    def init(self, shared: Params) -> dict[str, Tensor]:
        """Return no state, or with momentum a direction of 0."""
        return _zeros("momentum", shared) if self.momentum else {}

    def step(
        self, shared: Params, change: Params, state: Params
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return u + lr m, where m = momentum m + change."""
        direction = dict(change)
        if self.momentum:
            direction = {name: state[f"momentum/{name}"] * self.momentum + change[name] for name in shared}
        moved = {name: u.add(direction[name], alpha=self.lr) for name, u in shared.items()}
        kept = {f"momentum/{name}": m for name, m in direction.items()} if self.momentum else {}
        return moved, kept


@dataclass(frozen=True, kw_only=True)
class Adam:
    """torch's Adam on the mean change, with bias correction: the personalization paper's FedAdam."""

    lr: float
    """The server's learning rate."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.999
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""

    def __post_init__(self) -> None:
        _check_rate(self.lr)
        _check_share("server_beta1", self.beta1)
        _check_share("server_beta2", self.beta2)
        _check_positive("server_eps", self.eps)

    def init(self, shared: Params) -> dict[str, Tensor]:
        """Return both moments at 0 and a count of steps."""
        count = {"count": torch.zeros((), dtype=torch.int64)}
        return {**_zeros("first", shared), **_zeros("second", shared), **count}

    def step(
        self, shared: Params, change: Params, state: Params
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return u + lr m^ / (sqrt(v^) + eps)."""
        count = state["count"] + 1
        debias1, debias2 = (1 - beta ** count.item() for beta in (self.beta1, self.beta2))
        moved: dict[str, Tensor] = {}
        kept: dict[str, Tensor] = {"count": count}
        for name, u in shared.items():
            d = change[name]
            first = state[f"first/{name}"] * self.beta1 + d * (1 - self.beta1)
            second = state[f"second/{name}"] * self.beta2 + d * d * (1 - self.beta2)
            scale = (second / debias2).sqrt_().add_(self.eps)
            moved[name] = u.addcdiv(first, scale, value=self.lr / debias1)
            kept |= {f"first/{name}": first, f"second/{name}": second}
        return moved, kept


@dataclass(frozen=True, kw_only=True)
class FedAdam:
    """FedAdam of Reddi et al.: Adam without bias correction, with a larger constant in the denominator."""

    lr: float
    """The server's learning rate."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.99
    """Decay of the second moment."""
    tau: float = 1e-3
    """Degree of adaptivity: added to the root; its square is the first value of the second moment."""

    def __post_init__(self) -> None:
        _check_moments(self)

    def init(self, shared: Params) -> dict[str, Tensor]:
        """Return the first moment at 0 and the second at tau^2."""
        return {**_zeros("first", shared), **_filled("second", shared, self.tau**2)}

    def step(
        self, shared: Params, change: Params, state: Params
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return u + lr m / (sqrt(v) + tau), where v = beta2 v + (1 - beta2) d^2."""
        return _step(self, shared, change, state, lambda v, d: v * self.beta2 + d * d * (1 - self.beta2))


@dataclass(frozen=True, kw_only=True)
class Adagrad:
    """FedAdagrad of Reddi et al.: a sum of squares; no momentum (beta1 = 0), as in their experiments."""

    lr: float
    """The server's learning rate."""
    tau: float = 1e-3
    """Degree of adaptivity: added to the root; its square is the first value of the sum."""

    def __post_init__(self) -> None:
        _check_rate(self.lr)
        _check_positive("server_tau", self.tau)

    def init(self, shared: Params) -> dict[str, Tensor]:
        """Return the sums of squares at tau^2."""
        return _filled("second", shared, self.tau**2)

    def step(
        self, shared: Params, change: Params, state: Params
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return u + lr d / (sqrt(v) + tau), where v = v + d^2."""
        kept = {f"second/{n}": state[f"second/{n}"] + d * d for n, d in change.items()}
        moved = {
            name: u.addcdiv(change[name], kept[f"second/{name}"].sqrt() + self.tau, value=self.lr)
            for name, u in shared.items()
        }
        return moved, kept


@dataclass(frozen=True, kw_only=True)
class Yogi:
    """FedYogi of Reddi et al.: the second moment changes by at most a share of the new square."""

    lr: float
    """The server's learning rate."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.99
    """Decay of the second moment."""
    tau: float = 1e-3
    """Degree of adaptivity: added to the root; its square is the first value of the second moment."""

    def __post_init__(self) -> None:
        _check_moments(self)

    def init(self, shared: Params) -> dict[str, Tensor]:
        """Return the first moment at 0 and the second at tau^2."""
        return {**_zeros("first", shared), **_filled("second", shared, self.tau**2)}

    def step(
        self, shared: Params, change: Params, state: Params
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return u + lr m / (sqrt(v) + tau), where v = v - (1 - beta2) d^2 sign(v - d^2)."""
        return _step(
            self, shared, change, state, lambda v, d: v - (1 - self.beta2) * (d * d) * (v - d * d).sign()
        )


def _step(
    optimizer: FedAdam | Yogi,
    shared: Params,
    change: Params,
    state: Params,
    second_moment: Callable[[Tensor, Tensor], Tensor],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return u + lr m / (sqrt(v) + tau) and both moments, with a rule for the new v from v and the change."""
    moved: dict[str, Tensor] = {}
    kept: dict[str, Tensor] = {}
    for name, u in shared.items():
        d = change[name]
        first = state[f"first/{name}"] * optimizer.beta1 + d * (1 - optimizer.beta1)
        second = second_moment(state[f"second/{name}"], d)
        moved[name] = u.addcdiv(first, second.sqrt() + optimizer.tau, value=optimizer.lr)
        kept |= {f"first/{name}": first, f"second/{name}": second}
    return moved, kept


def _filled(kind: str, like: Params, value: float) -> dict[str, Tensor]:
    return {f"{kind}/{name}": torch.full_like(tensor, value) for name, tensor in like.items()}


def _zeros(kind: str, like: Params) -> dict[str, Tensor]:
    return _filled(kind, like, 0.0)


def _check_moments(optimizer: FedAdam | Yogi) -> None:
    _check_rate(optimizer.lr)
    _check_share("server_beta1", optimizer.beta1)
    _check_share("server_beta2", optimizer.beta2)
    _check_positive("server_tau", optimizer.tau)


def _check_rate(lr: float) -> None:
    check_number("`server_lr`", lr)


def _check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"`{name}` must be from 0 to below 1, got {value!r}.")


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"`{name}` must be a finite number above 0, got {value!r}.")
