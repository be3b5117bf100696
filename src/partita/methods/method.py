"""How a device learns: the settings of a method in training rounds, and of fine-tuning."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from partita.methods.carried import Carried, make_update
from partita.methods.declared import LocalFn
from partita.methods.descent import OptimizerFn, Steps
from partita.methods.sgd import SGD
from partita.protocol import Finetune, Pace, Update, check_number

Weights = Literal["examples", "equal"]
"""Weight of a device in the mean: its number of training examples, or the same for all."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A device's training in a round."""

    local: LocalFn
    """The device's update, such as LocalAlt; one with settings of its own as a `functools.partial`."""
    batch_size: int = 32
    """Examples per step."""
    shared_lr: float = 0.1
    """Learning rate of the shared part on devices, before the schedule."""
    shared_epochs: int = 1
    """Passes over a device's training examples to update the shared part."""
    shared_steps: int = 0
    """Number of steps on the shared part, instead of `shared_epochs`; 0: use `shared_epochs`."""
    personal_lr: float | None = None
    """Learning rate of the personal part, before the schedule; default: `shared_lr`."""
    personal_epochs: int = 1
    """Passes over a device's training examples to update the personal part."""
    personal_steps: int = 0
    """Number of steps on the personal part, instead of `personal_epochs`; 0: use `personal_epochs`."""
    stateful: bool = True
    """Whether devices keep their personal part, and the state of their method, from one round to the next."""
    max_grad_norm: float = 0.0
    """Maximum gradient norm, over all parameters trained in a step; 0: no clipping."""
    weights: Weights = "examples"
    """Weight of a device in aggregation: its number of training `examples`, or `equal` for all devices."""
    proximal: float = 0.0
    """Strength mu of the proximal term (mu / 2) ||u - u_sent||^2, which keeps u close to the server's."""
    optimizer: OptimizerFn = SGD
    """Optimizer of the device, created in each visit."""

    def __post_init__(self) -> None:
        update = self.update
        if not any((self.personal_epochs, self.personal_steps, self.shared_epochs, self.shared_steps)):
            raise ValueError("Nothing would be trained: all epochs and steps are 0.")
        _check_steps(self)
        check_number("`proximal`", self.proximal)
        if self.weights not in get_args(Weights):
            raise ValueError(f"`weights` must be 'examples' or 'equal', got {self.weights!r}.")
        self._try_local(update.personal, update.shared)

    def _try_local(self, personal: Pace, shared: Pace) -> None:
        """Raise where the update refuses these numbers of steps on some device."""
        # An epoch has a different number of steps on every device: 1 on a small one, 2 on a larger one.
        for batches in (1, 2):
            counts = [pace.steps or pace.epochs * batches for pace in (personal, shared)]
            update = make_update(
                self.local,
                personal=Steps(count=counts[0], lr=0.0),
                shared=Steps(count=counts[1], lr=0.0),
                carried=Carried(kept={}, sent={}),
            )
            if not callable(update):
                raise TypeError(
                    f"`local` must return a function of a model, as LocalAlt does, got {update!r}."
                )

    @property
    def update(self) -> Update:
        """The order for this method's update, at its full learning rates."""
        shared = _pace("shared", self.shared_lr, self.shared_epochs, self.shared_steps)
        personal_lr = self.shared_lr if self.personal_lr is None else self.personal_lr
        return Update(
            personal=_pace("personal", personal_lr, self.personal_epochs, self.personal_steps),
            shared=shared,
        )


@dataclass(frozen=True, kw_only=True)
class Finetuning:
    """The last stage: each device trains its personal part alone."""

    epochs: int = 5
    """Passes over a device's training examples; 0 skips this stage."""
    personal_lr: float = 0.01
    """Learning rate of the personal part."""
    batch_size: int = 32
    """Examples per step."""
    max_grad_norm: float = 0.0
    """Maximum gradient norm; 0: no clipping."""
    optimizer: OptimizerFn = SGD
    """Optimizer of the device."""

    def __post_init__(self) -> None:
        _check_steps(self)
        _ = self.work  # It checks its values.

    @property
    def work(self) -> Finetune:
        """The work that devices are asked to do."""
        return Finetune(personal=_pace("personal", self.personal_lr, self.epochs, 0))


def _check_steps(settings: Method | Finetuning) -> None:
    """Raise if the batch size, the clipping or the optimizer makes no sense."""
    if settings.batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1, got {settings.batch_size}.")
    norm = settings.max_grad_norm
    if not (math.isfinite(norm) and norm >= 0):
        raise ValueError(f"`max_grad_norm` must be a finite number, 0 (no clipping) or above, got {norm!r}.")
    if not callable(settings.optimizer):
        raise TypeError(f"`optimizer` must be a function of parameter groups, got {settings.optimizer!r}.")


def _pace(part: str, lr: float, epochs: int, steps: int) -> Pace:
    check_number(f"`{part}_lr`", lr)
    return Pace(lr=lr, epochs=0 if steps else epochs, steps=steps)
