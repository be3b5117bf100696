"""FedAdam: pretraining alone, for as many rounds as other methods train in all, with FedAdam on the server.

Adaptive Federated Optimization
    S. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan. ICLR 2021.
    https://arxiv.org/abs/2003.00295
"""

from collections.abc import Mapping
from typing import Any

from partita.methods.fedavg import NO_PERSONAL_STEPS, LocalSGD
from partita.methods.named import Budget, Citation, NamedMethod

_SERVER = "fedadam"
"""The name of the server's optimizer."""
_SERVER_LR = 0.01
"""A learning rate for FedAdam; that of another server optimizer does not suit it."""


def _from_scratch(budget: Budget) -> Mapping[str, Any]:
    """Return all rounds as pretraining, without the settings of another server optimizer."""
    settings: dict[str, Any] = {"pretrain.rounds": budget.rounds}
    if budget.pretrain["server_optimizer"] != _SERVER:
        settings |= {f"pretrain.{key}": None for key in budget.pretrain if key.startswith("server_")}
        settings["pretrain.server_lr"] = _SERVER_LR
    return settings


METHOD = NamedMethod(
    title="FedAdam, all rounds",
    update=LocalSGD,
    citation=Citation(
        key="reddi2021",
        title="Adaptive Federated Optimization",
        authors="Sashank Reddi and Zachary Charles and Manzil Zaheer and Zachary Garrett and Keith Rush and "
        "Jakub Kone{\\v{c}}n{\\'y} and Sanjiv Kumar and H. Brendan McMahan",
        venue="International Conference on Learning Representations",
        year=2021,
        arxiv="2003.00295",
    ),
    personal="none",
    fixed={**NO_PERSONAL_STEPS, "personalize.rounds": 0, "pretrain.server_optimizer": _SERVER},
    suggested={"pretrain.server_lr": _SERVER_LR},
    rates=("pretrain.server_lr",),
    order=12,
    from_scratch=_from_scratch,
)
