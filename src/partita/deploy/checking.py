"""`partita join --check`: whether a device could take part, without a single byte to the server."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from partita.config.building import Built
from partita.deploy.keys import certificate_problem
from partita.deploy.policy import Forbidden, Policy
from partita.methods.carried import sent_by
from partita.protocol import DeviceId, Stage
from partita.tasks.build import build_model, split_by_stage
from partita.training.costs import cost_model_of
from partita.training.visit_memory import visit_costs

_COPIES = 4
"""Copies of what a device keeps that must fit on its disk: its own, the new one, the best one, a reserve."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    text: str
    is_good: bool = True


def check_keys(home: Path, device: DeviceId) -> Finding:
    """Check the device's key and certificate, by this machine's clock."""
    problem = certificate_problem(home, device, datetime.now(UTC))
    return Finding(
        "keys and clock", problem or f"the certificate is for {device!r} and valid", problem is None
    )


def check_machine(built: Built, home: Path, *, seed: int) -> list[Finding]:
    """Check whether disk and memory are enough for the largest visit."""
    task, own, plan = built.task, built.personalization, built.plan
    model = cost_model_of(task, seed=seed)
    training = plan.personalize or plan.pretrain
    assert training is not None, "A plan from a config has both."
    costs = model.costs(own, training.method.local)
    wanted = _COPIES * costs["disk_bytes"] + 2 * costs["up_bytes"]
    free = shutil.disk_usage(next(path for path in (home, *home.absolute().parents) if path.exists())).free
    found = [Finding("disk", f"{_size(wanted)} needed, {_size(free)} free", wanted <= free)]
    memory = visit_costs(model, own, plan, reuse=bool(built.execution.reuse))["visit_bytes"]
    available = _available_memory()
    if memory is not None and available is not None:
        text = f"{_size(memory)} needed for a visit, {_size(available)} available"
        found.append(Finding("memory", text, memory <= available))
    return found


def check_policy(policy: Policy, built: Built, *, seed: int) -> Finding:
    """Check whether the device's policy allows the training that its own config plans.

    A policy may leave out a stage, but not all of them.
    """
    task, plan = built.task, built.plan
    pretrains = plan.training(Stage.PRETRAINED) is not None
    split = split_by_stage(task, built.personalization, seed=seed, pretrains=pretrains)
    allowed: list[str] = []
    for stage in policy.stages:
        if (training := plan.training(Stage(stage))) is None:
            continue
        own, method = split[Stage(stage)], training.method
        shared = own.partition.of(build_model(task, own, seed=seed)).shared
        sent = {name: each.tensor for name, each in sent_by(method.local, own.partition, shared).items()}
        try:
            policy.check_training(Stage(stage), {**shared, **sent}, max_grad_norm=method.max_grad_norm)
        except Forbidden as error:
            text = f"{error} No order to train in the stage `{stage}` would be followed."
            return Finding("policy", text, is_good=False)
        allowed.append(f"`{stage}`")
    text = f"it allows training in {' and '.join(allowed)}" if allowed else "it allows no training"
    return Finding("policy", text, bool(allowed) or not plan.trainings)


def check_digest(computes: Mapping[str, str], expected: str) -> Finding:
    """Check that the device computes with what the operator expects."""
    own = digest_of_all(computes)
    is_same = not expected or own == expected
    return Finding("digest", own if is_same else f"{own}, and not {expected}", is_same)


def digest_of_all(computes: Mapping[str, str]) -> str:
    """Return one digest of all that a device computes with, by which people can compare."""
    return hashlib.sha256(json.dumps(dict(sorted(computes.items()))).encode()).hexdigest()


def _available_memory() -> int | None:
    """Return the memory that is free for programs, in bytes; None where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in lines else None


def _size(count: float) -> str:
    return f"{count / 1e6:,.1f} MB"
