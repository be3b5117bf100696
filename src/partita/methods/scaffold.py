"""SCAFFOLD: FedAvg whose steps are corrected by control variates, which estimate the drift of each device.

SCAFFOLD: Stochastic Controlled Averaging for Federated Learning
    S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh. ICML 2020.
    https://arxiv.org/abs/1910.06378

Each device keeps a control variate c_i, and the server's control variate c is sent with the shared part. Both
are declared here; no other module knows of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from partita.methods.carried import Carried, Sent, mean_over_all_devices
from partita.methods.descent import Batch, LossFn, Phases, Steps, descend
from partita.methods.fedavg import NO_PERSONAL_STEPS
from partita.methods.named import SHARED_RATE, Citation, NamedMethod
from partita.params import Params, cloned
from partita.partition import Partition

_CONTROL = "control/"


@dataclass(frozen=True, kw_only=True)
class LocalScaffold:
    """Steps on u along g - c_i + c, then c_i becomes the visit's mean gradient (the paper's option II)."""

    phases: ClassVar[Phases] = (("shared",),)

    personal: Steps
    """Not used: every update is given steps for both parts."""
    shared: Steps
    """Steps on u, by plain SGD: the control variates assume it."""
    carried: Carried
    """c_i and c."""

    @staticmethod
    def keeps(shared: Params, personal: Params) -> dict[str, Tensor]:
        """Return c_i = 0."""
        return {f"{_CONTROL}{name}": torch.zeros_like(tensor) for name, tensor in shared.items()}

    @staticmethod
    def sends(shared: Params) -> dict[str, Sent]:
        """Return c = 0, to which the server adds the changes of all c_i over the number of all devices."""
        zeros = LocalScaffold.keeps(shared, {})
        return {name: Sent(tensor, mean_over_all_devices) for name, tensor in zeros.items()}

    def __call__(
        self,
        model: nn.Module,
        partition: Partition,
        batches: Iterable[Batch],
        loss: LossFn,
    ) -> list[float]:
        """Train the model and move c_i, in place, and return the loss of every step."""
        own, all_devices = self.carried.kept, self.carried.sent
        shared = partition.of(model).shared
        before = cloned({name: shared[name.removeprefix(_CONTROL)] for name in own})
        zero = torch.zeros((), device=next(model.parameters()).device)
        drift = {name.removeprefix(_CONTROL): all_devices[name] - own[name] for name in own}

        def corrected(model: nn.Module, batch: Batch) -> Tensor:
            # A term that is 0 and whose gradient is c - c_i.
            lean = sum(((shared[name] * d).sum() for name, d in drift.items()), start=zero)
            return loss(model, batch) + (lean - lean.detach())

        losses = descend({"shared": self.shared}, model, partition, batches, corrected)
        if way := len(losses) * self.shared.lr:
            for name, start in before.items():
                moved = (start - shared[name.removeprefix(_CONTROL)].detach()) / way - all_devices[name]
                own[name] += moved
                all_devices[name] += moved
        return losses


METHOD = NamedMethod(
    title="SCAFFOLD",
    update=LocalScaffold,
    citation=Citation(
        key="karimireddy2020",
        title="{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning",
        authors="Sai Praneeth Karimireddy and Satyen Kale and Mehryar Mohri and Sashank Reddi and "
        "Sebastian Stich and Ananda Theertha Suresh",
        venue="International Conference on Machine Learning",
        year=2020,
        arxiv="1910.06378",
    ),
    personal="none",
    fixed={
        **NO_PERSONAL_STEPS,
        "personalize.weights": "equal",
        "personalize.optimizer": "sgd",
        "personalize.momentum": 0.0,
        "personalize.stateful": True,
    },
    rates=(SHARED_RATE,),
    order=14,
)
