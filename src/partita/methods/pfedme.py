"""pFedMe: gradient steps on the Moreau envelopes of the devices' losses.

Personalized Federated Learning with Moreau Envelopes
    C. T. Dinh, N. H. Tran, T. D. Nguyen. NeurIPS 2020.
    https://arxiv.org/abs/2006.08848

It runs on the partition `full`, whose penalty is (lambda / 2) ||theta - w||^2 with the device's whole model
as theta and the shared one as w. The gradient of the envelope at w is lambda (w - theta), which is the
gradient of that penalty: a step of plain SGD on the shared part of the same loss is pFedMe's step on w,
w - lr lambda (w - theta), whatever optimizer moves theta. `max_grad_norm` clips the steps on theta alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import ClassVar

import torch
from torch import nn

from partita.methods.descent import Batch, LossFn, Phases, Steps, descend
from partita.methods.named import LAMBDAS, Citation, NamedMethod
from partita.partition import Partition


@dataclass(frozen=True, kw_only=True)
class LocalMoreau:
    """On each batch, many steps on theta toward the batch's proximal point, then one on w."""

    phases: ClassVar[Phases] = (("personal",), ("shared",))

    personal: Steps
    """Steps on theta for each batch."""
    shared: Steps
    """Steps on w, each on a batch of its own."""

    def __call__(
        self,
        model: nn.Module,
        partition: Partition,
        batches: Iterable[Batch],
        loss: LossFn,
    ) -> list[float]:
        """Train the model in place and return the loss of every step on theta."""
        step = Steps(count=1, lr=self.shared.lr)
        losses: list[float] = []
        for batch in self.shared.draw(batches, model):
            losses += descend({"personal": self.personal}, model, partition, repeat(batch), loss)
            descend({"shared": step}, model, partition, repeat(batch), loss)
        _copy_statistics(model)
        return losses


def _copy_statistics(model: nn.Module) -> None:
    """Copy the statistics of theta's normalization layers to w's, in place: w itself is never run."""
    statistics = dict(model.get_submodule("personal").named_buffers())
    with torch.no_grad():
        for name, buffer in model.get_submodule("shared").named_buffers():
            buffer.copy_(statistics[name])


METHOD = NamedMethod(
    title="pFedMe",
    update=LocalMoreau,
    citation=Citation(
        key="dinh2020",
        title="Personalized Federated Learning with {Moreau} Envelopes",
        authors="Canh T. Dinh and Nguyen Tran and Tuan Dung Nguyen",
        venue="Advances in Neural Information Processing Systems",
        year=2020,
        arxiv="2006.08848",
    ),
    personal="full",
    fixed={"personalize.stateful": False},
    suggested={"personalize.personal_steps": 5, "personalize.weights": "equal"},
    search={"partition.proximal": LAMBDAS},
    compared_by_default=True,
    order=22,
    follows=True,
)
