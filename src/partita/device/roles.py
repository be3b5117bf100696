"""The roles of a device: how the model is split in each stage, and how the device learns there.

A device builds its roles from its own task, partition and methods; nothing here comes from the server.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from partita.methods import registry
from partita.methods.carried import LocalFn
from partita.methods.descent import OptimizerFn
from partita.methods.method import Method
from partita.methods.sgd import SGD
from partita.partition import Personalization
from partita.protocol import Stage


@dataclass(frozen=True, kw_only=True)
class Role:
    """How devices learn in one stage."""

    personalization: Personalization
    """How the stage's model is split."""
    local: LocalFn = field(default_factory=lambda: registry.find(registry.REFERENCE).update)
    """The update of a training round."""
    optimizer: OptimizerFn = SGD
    """The device's optimizer, created anew in each visit."""
    stateful: bool = True
    """Whether the device keeps its personal part, and the state of its method, from one visit to the next."""


def build_roles(
    stages: Mapping[Stage, Personalization],
    *,
    pretrain: Method | None = None,
    personalize: Method | None = None,
    finetune: OptimizerFn = SGD,
) -> dict[Stage, Role]:
    """Return the role of a device in each stage.

    Args:
        stages: how the model is split in each stage, see `tasks.build.split_by_stage`.
        pretrain: the method of pretraining, if there is any.
        personalize: the method of personalization, if there is any.
        finetune: the optimizer of finetuning.
    """
    return {
        Stage.PRETRAINED: _training_role(stages[Stage.PRETRAINED], pretrain),
        Stage.PERSONALISED: _training_role(stages[Stage.PERSONALISED], personalize),
        Stage.FINETUNED: Role(personalization=stages[Stage.FINETUNED], optimizer=finetune),
    }


def _training_role(personalization: Personalization, method: Method | None) -> Role:
    if method is None:
        return Role(personalization=personalization)
    return Role(
        personalization=personalization,
        local=method.local,
        optimizer=method.optimizer,
        stateful=method.stateful,
    )
