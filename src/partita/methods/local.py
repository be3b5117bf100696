"""Training alone: every device trains the whole model on its own data and exchanges nothing."""

from collections.abc import Mapping
from typing import Any

from partita.methods.fedavg import LocalSGD
from partita.methods.finetune import WHOLE_MODEL
from partita.methods.named import FINETUNE_RATE, Budget, NamedMethod

_TAKEN_OVER = ("batch_size", "optimizer", "momentum", "weight_decay", "max_grad_norm")
"""Settings of pretraining that local training uses too."""


def _from_scratch(budget: Budget) -> Mapping[str, Any]:
    """Return settings of pretraining, for as many passes over a device's examples as in all stages."""
    settings = {f"finetune.{key}": budget.pretrain[key] for key in _TAKEN_OVER}
    own = {"finetune.personal_lr": budget.pretrain["shared_lr"], "finetune.epochs": budget.passes}
    return {**settings, **own}


METHOD = NamedMethod(
    title="Local only",
    update=LocalSGD,
    personal="full",
    fixed={**WHOLE_MODEL, "pretrain.rounds": 0},
    rates=(FINETUNE_RATE,),
    always_compared=True,
    order=10,
    from_scratch=_from_scratch,
)
