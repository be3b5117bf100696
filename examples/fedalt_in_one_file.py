"""FedAlt in one file: the algorithm of the paper in plain loops, with nothing but torch.

Federated Learning with Partial Model Personalization
    K. Pillutla, K. Malik, A. Mohamed, M. Rabbat, M. Sanjabi, L. Xiao. ICML 2022.
    https://arxiv.org/abs/2204.03809

Read it to see what Partita computes; a test checks that the library gives the same bits. Run it with
`python examples/fedalt_in_one_file.py`; it takes a few seconds.
"""

import hashlib
import json
import random
from collections.abc import Iterator

import torch
from torch import Tensor, nn

Device = tuple[Tensor, Tensor]
Params = dict[str, Tensor]


def fedalt(
    model: nn.Module,
    personal: set[str],
    devices: dict[str, Device],
    *,
    rounds: int,
    devices_per_round: int,
    batch_size: int,
    personal_lr: float,
    shared_lr: float,
    seed: int,
) -> tuple[Params, dict[str, Params]]:
    """Return u and every v_i after training with FedAlt, one epoch on v_i and one on u per visit."""
    now: Params = dict(model.named_parameters())
    u = {name: now[name].detach().clone() for name in now if name not in personal}
    v = {i: {name: now[name].detach().clone() for name in personal} for i in devices}

    for t in range(rounds):
        # The server samples m devices and broadcasts u.
        sampler = random.Random(seed_of(seed, "personalized", t, "cohort"))
        cohort = [list(devices)[k] for k in sampler.sample(range(len(devices)), devices_per_round)]
        total = {name: torch.zeros(u[name].shape, dtype=torch.int64) for name in u}
        weight = 0

        for i in cohort:
            # LocalAlt: update v_i with u fixed, then u with the new v_i fixed.
            copy(u | v[i], into=now)
            generator = torch.Generator().manual_seed(seed_of(seed, "personalized", t, i))
            batches = epochs(devices[i], batch_size, generator)
            for batch in next(batches):
                step(model, {name: now[name] for name in personal}, batch, personal_lr)
            for batch in next(batches):
                step(model, {name: now[name] for name in u}, batch, shared_lr)

            # v_i stays on the device; the device sends the change of u to the server.
            v[i] = {name: now[name].detach().clone() for name in personal}
            examples = len(devices[i][0])
            for name in u:
                change = now[name].detach() - u[name]
                total[name] += examples * quantize(change)
            weight += examples

        # The server adds the weighted mean of the changes.
        u = {name: u[name] + mean(total[name], weight) for name in u}
    return u, v


def step(model: nn.Module, moving: Params, batch: Device, lr: float) -> None:
    """Take one gradient step on some of the model's parameters, in place."""
    inputs, targets = batch
    loss = nn.functional.mse_loss(model(inputs), targets)
    gradients = torch.autograd.grad(loss, list(moving.values()))
    with torch.no_grad():
        for parameter, gradient in zip(moving.values(), gradients, strict=True):
            parameter.add_(gradient, alpha=-lr)


def epochs(data: Device, batch_size: int, generator: torch.Generator) -> Iterator[list[Device]]:
    """Yield epochs, each a list of batches in a new random order; the last batch may be short."""
    inputs, targets = data
    while True:
        order = torch.randperm(len(inputs), generator=generator)
        yield [(inputs[rows], targets[rows]) for rows in order.split(batch_size)]


def copy(values: Params, *, into: Params) -> None:
    """Copy values into parameters, in place."""
    with torch.no_grad():
        for name, value in values.items():
            into[name].copy_(value)


# The mean is a sum of integers, so it does not depend on the order of replies.


def quantize(change: Tensor) -> Tensor:
    """Return a change as integer multiples of 2^-36."""
    return (change.double() * 2**36).round().long()


def mean(total: Tensor, weight: int) -> Tensor:
    """Return the weighted mean of changes from the sum of weights times quantized changes."""
    return (total.double() / (weight * 2.0**36)).float()


# Every use of randomness has its own seed, so it does not depend on what ran before.


def seed_of(seed: int, *path: str | int) -> int:
    """Return the seed for one use of randomness: a digest of the run's seed and its purpose."""
    digest = hashlib.sha256(json.dumps([seed, *path]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


# Synthetic data: every device measures the same curve, with its own offset and slope.


def make_model() -> nn.Module:
    """Return a small network; its last layer will be personal."""
    return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))


def make_devices(count: int = 12, *, seed: int = 0) -> dict[str, Device]:
    """Return noisy measurements of a curve; devices have different numbers of examples."""
    generator = torch.Generator().manual_seed(seed)
    devices: dict[str, Device] = {}
    for number in range(count):
        examples = 20 + 7 * (number % 5)
        slope, offset = torch.randn(2, generator=generator)
        inputs = 6 * torch.rand(examples, 1, generator=generator) - 3
        noise = 0.1 * torch.randn(examples, 1, generator=generator)
        devices[f"device-{number:02}"] = inputs, (1 + slope) * inputs.sin() + offset + noise
    return devices


def main() -> None:
    """Train, and print the mean squared error of each device."""
    devices = make_devices()
    torch.manual_seed(seed_of(1, "model"))
    model = make_model()
    u, v = fedalt(
        model,
        {"4.weight", "4.bias"},
        devices,
        rounds=100,
        devices_per_round=4,
        batch_size=8,
        personal_lr=0.05,
        shared_lr=0.05,
        seed=1,
    )
    for device, (inputs, targets) in devices.items():
        copy(u | v[device], into=dict(model.named_parameters()))
        error = nn.functional.mse_loss(model(inputs), targets).item()
        print(f"{device}: mean squared error {error:.3f}, variance {targets.var().item():.3f}")


if __name__ == "__main__":
    main()
