"""A method: how a device updates in a round, with its rates and numbers of steps."""

import math
from dataclasses import dataclass

from partita.methods.carried import Carried, LocalFn, make_update
from partita.methods.descent import OptimizerFn, Steps
from partita.methods.sgd import SGD
from partita.protocol import Pace, Update, Weights


@dataclass(frozen=True, kw_only=True)
class Method:
    """What a device does in a training round."""

    local: LocalFn
    """The device's update: LocalAlt for FedAlt, LocalSim for FedSim, LocalSGD for FedAvg."""
    shared_lr: float
    """The learning rate of the shared part, before the schedule."""
    personal_lr: float | None = None
    """The learning rate of the personal part, before the schedule; None: as `shared_lr`."""
    personal_epochs: int = 1
    """Passes over the training examples that update the personal part."""
    shared_epochs: int = 1
    """Passes over the training examples that update the shared part."""
    personal_steps: int = 0
    """Steps on the personal part, in place of epochs; 0: epochs."""
    shared_steps: int = 0
    """Steps on the shared part, in place of epochs; 0: epochs."""
    batch_size: int = 32
    """Examples in a step."""
    max_grad_norm: float = 0.0
    """The most that the norm of all that moves in a step may be; 0 does not clip."""
    weights: Weights = "examples"
    """How much a device counts in the mean: as its training examples, or as any other."""
    optimizer: OptimizerFn = SGD
    """The device's optimizer, made anew in each visit."""
    stateful: bool = True
    """Whether the personal part is kept from one visit to the next."""
    proximal: float = 0.0
    """How strongly the shared part is held to what the server sent, FedProx's mu."""

    def __post_init__(self) -> None:
        update = self.update
        if not any((self.personal_epochs, self.personal_steps, self.shared_epochs, self.shared_steps)):
            raise ValueError("Nothing would move: all epochs and steps are 0.")
        if not callable(self.optimizer):
            raise TypeError(f"`optimizer` must be a function of parameter groups, got {self.optimizer!r}.")
        self._try_local(update.personal, update.shared)

    def _try_local(self, personal: Pace, shared: Pace) -> None:
        """Raise where the update would not take these numbers of steps on any device."""
        # An epoch has a different number of steps on every device: as many as 1 here, as many as 2 there.
        for batches in (1, 2):
            counts = [pace.steps or pace.epochs * batches for pace in (personal, shared)]
            update = make_update(
                self.local,
                personal=Steps(count=counts[0], lr=0.0),
                shared=Steps(count=counts[1], lr=0.0),
                carried=Carried(kept={}, sent={}),
            )
            if not callable(update):
                raise TypeError(f"`local` must give a function of a model, as LocalAlt does, got {update!r}.")

    @property
    def update(self) -> Update:
        """The order that asks for this method's update, at its full rates."""
        shared = _pace("shared", self.shared_lr, self.shared_epochs, self.shared_steps)
        personal_lr = self.shared_lr if self.personal_lr is None else self.personal_lr
        return Update(
            personal=_pace("personal", personal_lr, self.personal_epochs, self.personal_steps),
            shared=shared,
            batch_size=self.batch_size,
            max_grad_norm=self.max_grad_norm,
            weights=self.weights,
            proximal=self.proximal,
        )


def _pace(part: str, lr: float, epochs: int, steps: int) -> Pace:
    if not (math.isfinite(lr) and lr >= 0):
        raise ValueError(f"`{part}_lr` must be a finite number, 0 or above, got {lr!r}.")
    return Pace(lr=lr, epochs=0 if steps else epochs, steps=steps)
