"""A device's own policy, `policy.toml` in its home: what may leave it, which no server can change."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from partita.config.reading import check_type
from partita.device.roles import Role
from partita.errors import ConfigError, did_you_mean
from partita.params import Params, change_in_bytes
from partita.protocol import Evaluate, Finetune, Order, Reply, Stage, Update

FILE = "policy.toml"
_STAGES = (Stage.PRETRAINED, Stage.PERSONALIZED, Stage.FINETUNED)


class Forbidden(Exception):
    """The device's policy does not allow an order or its reply; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The policy of a device; the defaults allow everything that an order can ask for."""

    names: tuple[str, ...] = ("*",)
    """Patterns of the tensors whose changes may leave."""
    max_bytes: int = 0
    """The most bytes of changes that may leave in a round; 0: no limit."""
    stages: tuple[str, ...] = tuple(_STAGES)
    """The stages in which the device takes part: pretrained, personalized, finetuned."""
    metrics: tuple[str, ...] = ("*",)
    """Patterns of the measures that may leave, such as loss, accuracy, examples."""
    min_cohort: int = 0
    """The least number of devices that are asked in a training round. The server says how many there are, and
    the device has to believe it."""
    require_clipping: bool = False
    """Whether the device trains the shared part only with `max_grad_norm` above 0."""

    def __post_init__(self) -> None:
        if unknown := [stage for stage in self.stages if stage not in _STAGES]:
            raise ValueError(f"`stages` must be among {', '.join(_STAGES)}, got {unknown[0]!r}.")
        for name in ("max_bytes", "min_cohort"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` must be 0 or above, got {getattr(self, name)}.")

    def check_order(self, order: Order, cohort: int, roles: Mapping[Stage, Role]) -> None:
        """Raise if an order must not be carried out.

        Args:
            order: the order.
            cohort: the number of devices that are asked, on the server's word.
            roles: how the device learns in each stage.
        """
        self._check_stage(order.stage)
        _check_length(order, roles[order.stage])
        if isinstance(order.work, Evaluate | Finetune):
            return
        if cohort < self.min_cohort:
            raise Forbidden(
                f"The policy asks for a cohort of at least {self.min_cohort}, and there are {cohort}."
            )
        self.check_training(order.stage, order.shared, max_grad_norm=roles[order.stage].method.max_grad_norm)

    def check_training(self, stage: Stage, shared: Params, *, max_grad_norm: float) -> None:
        """Raise if a change of these tensors must not leave in a training round of a stage."""
        self._check_stage(stage)
        if self.require_clipping and not max_grad_norm > 0:
            raise Forbidden("The policy asks for clipping, and `max_grad_norm` is 0.")
        for name in shared:
            if not _matches(name, self.names):
                raise Forbidden(f"The policy does not allow a change of `{name}` to leave.")
        if self.max_bytes and (size := change_in_bytes(shared)) > self.max_bytes:
            raise Forbidden(
                f"The policy allows {self.max_bytes} bytes in a round, and the change has {size}."
            )

    def _check_stage(self, stage: Stage) -> None:
        if stage not in self.stages:
            raise Forbidden(f"The policy does not allow the stage `{stage}`.")

    def check_reply(self, order: Order, reply: Reply) -> None:
        """Raise if a reply must not be sent: it has other tensors than the order, or a measure too many."""
        asked = isinstance(order.work, Update)
        if asked != (reply.change is not None) or (
            reply.change and reply.change.keys() != order.shared.keys()
        ):
            raise Forbidden("The reply has other tensors than the shared part.")
        for measures in reply.metrics.values():
            for name, value in measures.items():
                if value is not None and not _matches(name, self.metrics):
                    raise Forbidden(f"The policy does not allow the measure `{name}` to leave.")


def _check_length(order: Order, role: Role) -> None:
    """Raise if an order asks for more training than the device's own config: only rates are the server's."""
    own = role.method.update
    match order.work:
        case Update(personal=personal, shared=shared):
            pairs = [(personal, own.personal), (shared, own.shared)]
        case Finetune(personal=personal):
            pairs = [(personal, role.finetuning.work.personal)]
        case _:
            pairs = []
    for asked, planned in pairs:
        if (asked.epochs, asked.steps) != (planned.epochs, planned.steps):
            raise Forbidden(
                f"The order asks for {asked.epochs} epochs and {asked.steps} steps, and the device's config "
                f"for {planned.epochs} and {planned.steps}."
            )


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def read_policy(home: Path) -> Policy:
    """Return the policy in a device's home; without the file, the one that allows everything.

    Raises:
        ConfigError: the file cannot be read, or a key or a value is wrong.
    """
    path = home / FILE
    if not path.exists():
        return Policy()
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"Cannot read `{path}`: {error}.") from None
    kinds = {"names": list[str], "stages": list[str], "metrics": list[str]}
    kinds |= {"max_bytes": int, "min_cohort": int, "require_clipping": bool}
    known = [entry.name for entry in fields(Policy)]
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"Unknown key `{name}` in `{path}`.{did_you_mean(name, known)}")
        check_type(value, kinds[name], name)
    given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    try:
        return Policy(**given)
    except ValueError as error:
        raise ConfigError(f"`{path}`: {error}") from None
