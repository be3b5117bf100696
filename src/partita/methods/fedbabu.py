"""FedBABU: the head is random and fixed during training, then fine-tuned on each device.

FedBABU: Toward Enhanced Representation for Federated Image Classification
    J. Oh, S. Kim, S.-Y. Yun. ICLR 2022.
    https://arxiv.org/abs/2106.06042
"""

from collections.abc import Mapping
from typing import Any

from partita.methods.fedavg import NO_PERSONAL_STEPS, LocalSGD
from partita.methods.named import FINETUNE_RATE, HEAD_APART, SHARED_RATE, Budget, Citation, NamedMethod


def _from_scratch(budget: Budget) -> Mapping[str, Any]:
    """Return the settings of pretraining, for all rounds, with the head always fixed."""
    settings = {f"personalize.{key}": value for key, value in budget.pretrain.items()}
    return {**settings, "personalize.rounds": budget.rounds, "pretrain.rounds": 0}


METHOD = NamedMethod(
    title="FedBABU",
    update=LocalSGD,
    citation=Citation(
        key="oh2022",
        title="{FedBABU}: Toward Enhanced Representation for Federated Image Classification",
        authors="Jaehoon Oh and SangMook Kim and Se-Young Yun",
        venue="International Conference on Learning Representations",
        year=2022,
        arxiv="2106.06042",
    ),
    personal="head",
    fixed={**HEAD_APART, **NO_PERSONAL_STEPS, "personalize.stateful": False},
    rates=(SHARED_RATE, FINETUNE_RATE),
    order=34,
    from_scratch=_from_scratch,
)
