"""APFL: each device mixes a model of its own with the shared one, and learns the mixture.

Adaptive Personalized Federated Learning
    Y. Deng, M. M. Kamani, M. Mahdavi. 2020.
    https://arxiv.org/abs/2003.13461

It runs on the partition `full` without its penalty. The shared model w is trained by FedAvg. A device keeps a
model v of its own and a weight alpha, and predicts with alpha v + (1 - alpha) w. In every step w moves by the
gradient of its own loss, and v and alpha move by the gradient of the mixture's loss, all at one point. Alpha
has the learning rate of v and stays between 0 and 1; the authors' code moves it in the first step of a visit
alone. Statistics of normalization layers are not mixed: w and
v each have their own.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from partita.methods.carried import Carried
from partita.methods.descent import Batch, LossFn, Steps, descend
from partita.methods.named import Citation, NamedMethod
from partita.params import Params
from partita.partition import Partition

_ALPHA = "apfl/alpha"
_SHARED, _OWN = "shared.", "personal."
"""The prefixes of the two models in the partition `full`."""


@dataclass(frozen=True, kw_only=True)
class LocalAPFL:
    """In each step, move w along its own gradient, and v and alpha along that of their mixture."""

    personal: Steps
    """Steps on v and alpha."""
    shared: Steps
    """Steps on w, as many as on v."""
    carried: Carried
    """Alpha."""
    alpha: float = 0.5
    """The weight of v in the mixture before a device's first visit, from 0 to 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"`alpha` must be from 0 to 1, got {self.alpha!r}.")
        if self.personal.count != self.shared.count:
            raise ValueError(
                "APFL takes as many steps on the personal model as on the shared one, got "
                f"{self.personal.count} and {self.shared.count}."
            )

    @staticmethod
    def keeps(shared: Params, personal: Params, *, alpha: float) -> dict[str, Tensor]:
        """Return alpha before the first visit."""
        return {_ALPHA: torch.tensor(alpha)}

    @staticmethod
    def begins(shared: Params, personal: Params, kept: Params) -> dict[str, Tensor]:
        """Return the mixture in the place of v."""
        return _mixture(shared, personal, kept[_ALPHA])

    def __call__(
        self,
        model: nn.Module,
        partition: Partition,
        batches: Iterable[Batch],
        loss: LossFn,
    ) -> list[float]:
        """Train both models and alpha, in place, and return the mixture's loss in every step."""
        parts = partition.of(model)
        alpha, losses = self.carried.kept[_ALPHA].requires_grad_(), list[float]()
        on_model = _Loss(model, loss)
        shared = {f"model.{_own(name)}": tensor for name, tensor in parts.shared.items()}

        def both(_: nn.Module, batch: Batch) -> Tensor:
            self._move(alpha)
            still = {name: tensor.detach() for name, tensor in parts.shared.items()}
            mixed = {f"model.{name}": t for name, t in _mixture(still, parts.personal, alpha).items()}
            own = functional_call(on_model, mixed, (batch,))
            losses.append(own.item())
            return own + functional_call(on_model, shared, (batch,))

        descend({"personal": self.personal, "shared": self.shared}, model, partition, batches, both)
        self._move(alpha)
        alpha.requires_grad_(False)
        return losses

    @torch.no_grad()
    def _move(self, alpha: Tensor) -> None:
        """Take the step on alpha that the last backward pass has a gradient for, in place."""
        if alpha.grad is not None:
            alpha.sub_(alpha.grad, alpha=self.personal.lr).clamp_(0, 1)
            alpha.grad = None


class _Loss(nn.Module):
    """The loss of a model, as a module whose tensors can be replaced for a call."""

    def __init__(self, model: nn.Module, loss: LossFn) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss on a batch."""
        return self._loss(self.model, batch)


def _own(name: str) -> str:
    """Return the name in v of a tensor of w."""
    if not name.startswith(_SHARED):
        raise ValueError(f"APFL needs the partition `full`, with two models: `{name}` is in neither.")
    return f"{_OWN}{name.removeprefix(_SHARED)}"


def _mixture(shared: Params, personal: Params, alpha: Tensor) -> dict[str, Tensor]:
    """Return alpha v + (1 - alpha) w for the parameters of both, under the names of v."""
    pairs = {_own(name): tensor for name, tensor in shared.items()}
    return {
        name: torch.lerp(pairs[name], own, alpha)
        for name, own in personal.items()
        if isinstance(own, nn.Parameter)
    }


METHOD = NamedMethod(
    title="APFL",
    update=LocalAPFL,
    citation=Citation(
        key="deng2020",
        title="Adaptive Personalized Federated Learning",
        authors="Yuyang Deng and Mohammad Mahdi Kamani and Mehrdad Mahdavi",
        year=2020,
        arxiv="2003.13461",
    ),
    personal="full",
    fixed={"partition.proximal": 0.0},
    search={"personalize.alpha": (0.25, 0.5, 0.75)},
    order=41,
    follows=True,
)
