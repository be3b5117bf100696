"""The roles of a device: how the model is split in each stage, and how the device learns there.

A device builds its roles from its own task, partition and methods; nothing here comes from the server.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from partita.methods import registry
from partita.methods.declared import LocalFn
from partita.methods.method import Finetuning, Method
from partita.partition import Personalization
from partita.protocol import Stage


@dataclass(frozen=True, kw_only=True)
class Role:
    """How devices learn in one stage."""

    personalization: Personalization
    """How the stage's model is split."""
    method: Method = field(default_factory=lambda: Method(local=registry.find(registry.REFERENCE).update))
    """How they learn in training rounds."""
    finetuning: Finetuning = field(default_factory=Finetuning)
    """How they fine-tune."""
    own: LocalFn | None = None
    """The update of personalization, which may declare how a device's own model begins and predicts."""


def build_roles(
    stages: Mapping[Stage, Personalization],
    *,
    pretrain: Method | None = None,
    personalize: Method | None = None,
    finetune: Finetuning | None = None,
) -> dict[Stage, Role]:
    """Return the role of a device in each stage.

    Args:
        stages: how the model is split in each stage, see `tasks.build.split_by_stage`.
        pretrain: the method of pretraining, if there is any.
        personalize: the method of personalization, if there is any.
        finetune: the settings of fine-tuning, if there is any.
    """
    own = personalize.local if personalize else None
    settings = {
        Stage.PRETRAINED: {"method": pretrain},
        Stage.PERSONALIZED: {"method": personalize, "own": own},
        Stage.FINETUNED: {"finetuning": finetune, "own": own},
    }
    return {
        stage: Role(
            personalization=stages[stage],
            **{name: value for name, value in given.items() if value is not None},
        )
        for stage, given in settings.items()
    }
