"""Synthetic tasks with a known optimum: least squares in u and v_i, and a mixture of two Gaussians."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from partita.data.cache import ExampleCache
from partita.data.devices import Devices, Splits
from partita.data.examples import Batch
from partita.data.options import keys_of, unknown_key
from partita.protocol import DeviceId, derive_seed
from partita.tasks.build import one_thread
from partita.tasks.classification_metrics import classification_metrics
from partita.tasks.metrics import Metric, NamedMetric, select
from partita.tasks.regression_metrics import REGRESSION
from partita.tasks.task import Task
from partita.tasks.validation import hold_out_validation

_MAX_SIZE, _MAX_VALUES = 100_000_000, 1_000_000_000
"""The largest sizes: of all ids, and of the data of one device, which are in memory at once."""


def synthetic(*, form: str = "quadratic", validation: float = 0.0, **settings: Any) -> Task:
    """Return a synthetic task with a known optimum.

    Args:
        form: `quadratic` or `mixture`.
        validation: the share of training examples held out for validation.
        settings: the keys of that form.
    """
    if form not in FORMS:
        raise ValueError(f"`form` must be one of {', '.join(FORMS)}, got {form!r}.")
    keys = ["form", *keys_of(FORMS[form])]
    for name in settings:
        if name not in keys:
            raise unknown_key(name, [*keys, "validation"])
    task = FORMS[form](**settings)
    return hold_out_validation(task, validation) if validation else task


def quadratic(
    *,
    devices: int = 20,
    examples: int = 40,
    shared: int = 5,
    personal: int = 2,
    noise: float = 0.1,
    spread: float = 1.0,
    seed: int = 1,
    metrics: Sequence[str] = ("error",),
) -> Task:
    """Return a task of least squares: targets are linear in u and v_i, plus noise.

    Args:
        devices: the number of devices.
        examples: the number of training examples of each device, and of test examples.
        shared: the dimension of u.
        personal: the dimension of v_i.
        noise: the standard deviation of the noise.
        spread: the standard deviation of the true v_i over devices.
        seed: the seed of the data.
        metrics: the names of metrics, the first being the headline metric: error (the mean squared error),
            mae, rmse, r2.
    """
    _check(devices, examples, shared, personal, spreads=(noise, spread))
    u = torch.randn(shared, generator=_generator(seed, "u"))

    def data(device: DeviceId) -> dict[str, tuple[Tensor, Tensor]]:
        generator = _generator(seed, device)
        v = spread * torch.randn(personal, generator=generator)
        inputs = torch.randn(2 * examples, shared + personal, generator=generator)
        errors = noise * torch.randn(2 * examples, generator=generator)
        targets = inputs @ torch.cat([u, v]) + errors
        return _halves(inputs, targets)

    return Task(
        model=partial(Quadratic, shared=shared, personal=personal),
        loss=half_square_error,
        metrics=select(metrics, _ERRORS, of="regression"),
        devices=_generated(devices, examples, data),
        model_options={"shared": shared, "personal": personal},
    )


def mixture(
    *,
    devices: int = 20,
    examples: int = 40,
    dimension: int = 5,
    distance: float = 2.0,
    spread: float = 1.0,
    seed: int = 1,
    metrics: Sequence[str] = ("accuracy",),
) -> Task:
    """Return a task of two Gaussian classes, which each device shifts by a vector of its own.

    The best boundary has the same direction on all devices, that between the centers, and a threshold of its
    own on each; with unit noise its accuracy is Phi(distance / 2).

    Args:
        devices: the number of devices.
        examples: the number of training examples of each device, and of test examples.
        dimension: the dimension of an input.
        distance: the distance between the two centers.
        spread: the standard deviation of the devices' shifts.
        seed: the seed of the data.
        metrics: the names of metrics, the first being the headline metric: accuracy, macro_f1,
            balanced_accuracy, auroc, log_loss, calibration_error.
    """
    _check(devices, examples, dimension, spreads=(distance, spread))
    center = _center(dimension, distance, seed)

    def data(device: DeviceId) -> dict[str, tuple[Tensor, Tensor]]:
        generator = _generator(seed, device)
        shift = spread * torch.randn(dimension, generator=generator)
        labels = torch.randint(2, (2 * examples,), generator=generator)
        inputs = shift + (2 * labels - 1).float()[:, None] * center
        return _halves(inputs + torch.randn(2 * examples, dimension, generator=generator), labels)

    return Task(
        model=partial(Boundary, dimension=dimension),
        loss=_cross_entropy,
        metrics=classification_metrics(metrics, classes=2),
        devices=_generated(devices, examples, data),
        model_options={"dimension": dimension},
    )


FORMS = {"quadratic": quadratic, "mixture": mixture}
"""The synthetic tasks by name."""


def best_boundary(
    *, devices: int = 20, dimension: int = 5, distance: float = 2.0, spread: float = 1.0, seed: int = 1
) -> tuple[Tensor, dict[DeviceId, Tensor]]:
    """Return u and every v_i of the best boundary of a `mixture` with these settings.

    With centers at -c and c, shifted by m, the log odds of an input x are 2 c . (x - m).
    """
    u = 2 * _center(dimension, distance, seed)
    shifts = {
        name: spread * torch.randn(dimension, generator=_generator(seed, name)) for name in _names(devices)
    }
    return u, {name: -(u @ shift).view(1) for name, shift in shifts.items()}


def _center(dimension: int, distance: float, seed: int) -> Tensor:
    direction = torch.randn(dimension, generator=_generator(seed, "direction"))
    return 0.5 * distance * direction / direction.norm()


class Quadratic(nn.Module):
    """A linear model: the weights are u for the first inputs and v for the others."""

    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {"output": ("v",)}

    def __init__(self, *, shared: int, personal: int) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.zeros(shared))
        self.v = nn.Parameter(torch.zeros(personal))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return a prediction for each row."""
        return inputs @ torch.cat([self.u, self.v])


class Boundary(nn.Module):
    """A linear classifier of two classes: a direction u and a threshold v."""

    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {"output": ("v",)}

    def __init__(self, *, dimension: int) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.zeros(dimension))
        self.v = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scores of the two classes for each row."""
        score = inputs @ self.u + self.v
        return torch.stack([torch.zeros_like(score), score], dim=1)


@dataclass(frozen=True)
class Optimum:
    """The optimum of a quadratic task, and its smoothness constants."""

    shared: Tensor
    """u at the optimum."""
    personal: Mapping[DeviceId, Tensor]
    """v_i at the optimum."""
    value: float
    """The average over devices of F_i at the optimum, weighted by training examples."""
    smoothness_shared: float
    """L_u: the largest eigenvalue of the Hessian in u, over all F_i."""
    smoothness_personal: float
    """L_v: the same for v_i."""
    coupling: float
    """L_uv: the largest norm of the mixed second derivatives, over all F_i."""


def find_optimum(task: Task) -> Optimum:
    """Return the optimum and the smoothness constants of a quadratic task, in closed form."""
    split = len(dict(task.model().named_parameters())["u"])
    parts = {device: _moments(task.devices[device]["train"], split) for device in task.devices}
    # With each v_i at its optimum for u, a quadratic in u alone remains.
    left = sum(p.uu - p.uv @ torch.linalg.solve(p.vv, p.uv.T) for p in parts.values())
    right = sum(p.uy - p.uv @ torch.linalg.solve(p.vv, p.vy) for p in parts.values())
    assert isinstance(left, Tensor)
    assert isinstance(right, Tensor)
    u = torch.linalg.solve(left, right)
    v = {device: torch.linalg.solve(p.vv, p.vy - p.uv.T @ u) for device, p in parts.items()}
    total = sum(p.value(u, v[device]) for device, p in parts.items())
    rows = sum(p.rows for p in parts.values())
    return Optimum(
        u.float(),
        {device: own.float() for device, own in v.items()},
        float(total) / rows,
        max(_largest(p.uu / p.rows) for p in parts.values()),
        max(_largest(p.vv / p.rows) for p in parts.values()),
        max(float(torch.linalg.svdvals(p.uv / p.rows)[0]) for p in parts.values()),
    )


@dataclass(frozen=True)
class _Moments:
    """Second moments summed over a device's training examples, in double precision."""

    uu: Tensor
    uv: Tensor
    vv: Tensor
    uy: Tensor
    vy: Tensor
    yy: Tensor
    rows: int

    def value(self, u: Tensor, v: Tensor) -> float:
        """Return half the sum of squared errors."""
        squares = self.yy - 2 * (u @ self.uy + v @ self.vy)
        return 0.5 * float(squares + u @ self.uu @ u + v @ self.vv @ v + 2 * (u @ self.uv @ v))


def _moments(data: tuple[Tensor, Tensor], split: int) -> _Moments:
    inputs, targets = data
    x, z, y = inputs[:, :split].double(), inputs[:, split:].double(), targets.double()
    return _Moments(x.T @ x, x.T @ z, z.T @ z, x.T @ y, z.T @ y, y @ y, len(y))


def _largest(matrix: Tensor) -> float:
    return float(torch.linalg.eigvalsh(matrix)[-1])


def half_square_error(model: nn.Module, batch: Batch) -> Tensor:
    """Return half the mean squared error."""
    inputs, targets = batch
    return 0.5 * (model(inputs) - targets).square().mean()


def mean_square_error(predictions: Tensor, targets: Tensor) -> float:
    """Return the mean squared error."""
    return (predictions - targets).square().double().mean().item()


_ERRORS = {"error": NamedMetric("error", Metric(mean_square_error, "down")), **REGRESSION}


def _cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def _halves(inputs: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    half = len(inputs) // 2
    return {"train": (inputs[:half], targets[:half]), "test": (inputs[half:], targets[half:])}


def _names(count: int) -> Iterator[DeviceId]:
    return map(_name, range(count))


def _name(number: int) -> DeviceId:
    return f"device-{number:04}"


def _generated(count: int, examples: int, generate: Callable[[DeviceId], Splits]) -> Devices:
    """Return devices whose data is generated on access; that of recently visited ones is cached."""
    cache = ExampleCache()

    def load(device: DeviceId) -> Splits:
        number = device.removeprefix("device-")
        if not number.isdecimal() or int(number) >= count or _name(int(number)) != device:
            raise KeyError(device)
        with one_thread():
            return cache.get_or_load((device, ""), lambda: generate(device))

    return Devices(_names(count), load, largest=lambda: examples, size=lambda _: examples)


def _generator(seed: int, use: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, "synthetic", use))


def _check(*sizes: int, spreads: tuple[float, ...]) -> None:
    if min(sizes) < 1:
        raise ValueError(f"All sizes must be at least 1, got {min(sizes)}.")
    if max(sizes) > _MAX_SIZE or math.prod(sizes[1:]) > _MAX_VALUES:
        raise ValueError(
            f"`devices` must be at most {_MAX_SIZE:,}, and the examples of a device times their dimensions "
            f"at most {_MAX_VALUES:,}, got the sizes {', '.join(map(str, sizes))}."
        )
    if not all(math.isfinite(spread) and spread >= 0 for spread in spreads):
        raise ValueError(f"Distances and standard deviations must be finite and 0 or above, got {spreads}.")
