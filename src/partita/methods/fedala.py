"""FedALA: each device starts from its own mixture of the model it had and the model the server sends.

FedALA: Adaptive Local Aggregation for Personalized Federated Learning
    J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan. AAAI 2023.
    https://arxiv.org/abs/2212.01197

A device keeps the higher layers as its last visit has left and sent them, and a weight W between 0 and 1 for
each of their values. Its next visit learns W on a sample of the device's examples, then starts from
old + (new - old) W, and from the new lower layers as they are. No part of the model is personal: W, which
never leaves the device, makes the mixture the device's own.

The paper learns W until it converges in the first visit that has an old model; here that visit makes a fixed
number of passes. The statistics of normalization layers are held still while W is learned.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from partita.methods.carried import Carried
from partita.methods.declared import OwnExamples
from partita.methods.descent import Batch, LossFn, Phases, Steps, descend
from partita.methods.fedavg import NO_PERSONAL_STEPS
from partita.methods.named import SHARED_RATE, Citation, NamedMethod
from partita.params import Params, cloned
from partita.partition import Partition

_OLD, _MIXING, _LEARNED = "ala/old/", "ala/mixing/", "ala/learned"


@dataclass(frozen=True, kw_only=True)
class LocalALA:
    """Learn W, start from the mixture, then update u."""

    phases: ClassVar[Phases] = (("shared",),)

    personal: Steps
    """Not used: every update is given steps for both parts."""
    shared: Steps
    """Steps on u, the shared part."""
    carried: Carried
    """The old higher layers and W."""
    examples: OwnExamples
    """The examples of which W is learned on a sample."""
    layers: int = 1
    """The number of higher layers that are mixed, the paper's p: the last modules that have parameters."""
    sample: float = 0.8
    """Share of the device's examples on which W is learned in a visit, the paper's s."""
    mixing_lr: float = 1.0
    """Learning rate of W, the paper's eta."""
    first_passes: int = 10
    """Passes over the sample in the first visit that learns W; each later visit makes one."""

    def __post_init__(self) -> None:
        if self.layers < 1 or self.first_passes < 1:
            raise ValueError(
                f"`layers` and `first_passes` must be at least 1, got {self.layers} and {self.first_passes}."
            )
        if not 0 < self.sample <= 1 or not 0 < self.mixing_lr < float("inf"):
            raise ValueError(
                "`sample` must be above 0 and at most 1 and `mixing_lr` a finite number above 0, got "
                f"{self.sample!r} and {self.mixing_lr!r}."
            )

    @staticmethod
    def keeps(shared: Params, personal: Params, *, layers: int) -> dict[str, Tensor]:
        """Return the higher layers as they are sent, W = 1, and that no visit has learned W."""
        higher = {name: shared[name] for name in _higher(shared, layers)}
        return {
            **{f"{_OLD}{name}": tensor.detach().clone() for name, tensor in higher.items()},
            **{f"{_MIXING}{name}": torch.ones_like(tensor) for name, tensor in higher.items()},
            _LEARNED: torch.zeros(()),
        }

    @staticmethod
    def begins(shared: Params, personal: Params, kept: Params) -> dict[str, Tensor]:
        """Return the mixture of the old higher layers and the new ones."""
        return {name: torch.lerp(old, shared[name], mixing) for name, old, mixing in _mixed(kept)}

    def __call__(
        self,
        model: nn.Module,
        partition: Partition,
        batches: Iterable[Batch],
        loss: LossFn,
    ) -> list[float]:
        """Learn W and train the model, in place, and return the loss of every step of training."""
        kept, shared = self.carried.kept, partition.of(model).shared
        new = cloned({name: shared[name] for name, _, _ in _mixed(kept)})
        if any(not old.equal(new[name]) for name, old, _ in _mixed(kept)):
            self._learn(new, model, partition, loss)
        _set(shared, self.begins(new, {}, kept))
        losses = descend({"shared": self.shared}, model, partition, batches, loss)
        for name, old, _ in _mixed(kept):
            old.copy_(shared[name].detach())
        return losses

    def _learn(self, new: Params, model: nn.Module, partition: Partition, loss: LossFn) -> None:
        """Learn W by gradient steps on the loss of the mixture, in place."""
        kept, shared = self.carried.kept, partition.let_move(model).shared
        mixed = [shared[name].requires_grad_() for name, _, _ in _mixed(kept)]
        count = max(1, int(self.sample * len(self.examples)))
        positions = torch.randperm(len(self.examples))[:count]
        for _ in range(1 if kept[_LEARNED].item() else self.first_passes):
            for some in positions.split(self.examples.batch_size):
                _set(shared, self.begins(new, {}, kept))
                gradients = torch.autograd.grad(loss(model, self.examples.batch_at(some)), mixed)
                for (name, old, mixing), gradient in zip(_mixed(kept), gradients, strict=True):
                    mixing.sub_(gradient * (new[name] - old), alpha=self.mixing_lr).clamp_(0, 1)
        kept[_LEARNED].fill_(1)


def _higher(shared: Params, layers: int) -> list[str]:
    """Return the names of the tensors of the last layers, in order."""
    owners = list(dict.fromkeys(name.rpartition(".")[0] for name in shared))[-layers:]
    return [name for name in shared if name.rpartition(".")[0] in owners]


def _mixed(kept: Params) -> list[tuple[str, Tensor, Tensor]]:
    """Return the name, the old value and W of each tensor that is mixed."""
    names = [name.removeprefix(_OLD) for name in kept if name.startswith(_OLD)]
    return [(name, kept[f"{_OLD}{name}"], kept[f"{_MIXING}{name}"]) for name in names]


@torch.no_grad()
def _set(tensors: Params, values: Mapping[str, Tensor]) -> None:
    """Give tensors new values, in place."""
    for name, value in values.items():
        tensors[name].copy_(value)


METHOD = NamedMethod(
    title="FedALA",
    update=LocalALA,
    citation=Citation(
        key="zhang2023",
        title="{FedALA}: Adaptive Local Aggregation for Personalized Federated Learning",
        authors="Jianqing Zhang and Yang Hua and Hao Wang and Tao Song and Zhengui Xue and Ruhui Ma and "
        "Haibing Guan",
        venue="AAAI Conference on Artificial Intelligence",
        year=2023,
        arxiv="2212.01197",
    ),
    personal="none",
    fixed={**NO_PERSONAL_STEPS, "personalize.stateful": True},
    rates=(SHARED_RATE,),
    search={"personalize.layers": (1, 2, 3), "personalize.sample": (0.2, 0.5, 0.8)},
    order=40,
)
