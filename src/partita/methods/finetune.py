"""Finetune: every device fine-tunes the whole pretrained model; no rounds of personalization.

Federated Learning with Partial Model Personalization
    K. Pillutla, K. Malik, A. Mohamed, M. Rabbat, M. Sanjabi, L. Xiao. ICML 2022.
    https://arxiv.org/abs/2204.03809
"""

from partita.methods.fedalt import PAPER
from partita.methods.fedavg import LocalSGD
from partita.methods.named import FINETUNE_RATE, NamedMethod

WHOLE_MODEL = {"partition.proximal": 0.0, "finetune.baseline": False, "personalize.rounds": 0}
"""Settings that only fine-tune, without a proximal term and without the baseline."""

METHOD = NamedMethod(
    title="Finetune",
    update=LocalSGD,
    citation=PAPER,
    personal="full",
    fixed=WHOLE_MODEL,
    rates=(FINETUNE_RATE,),
    compared_by_default=True,
    also_continued=True,
    order=20,
)
