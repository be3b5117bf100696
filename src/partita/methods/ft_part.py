"""FT (part.): every device fine-tunes the personal part of the pretrained model; no personalization rounds.

Federated Learning with Partial Model Personalization
    K. Pillutla, K. Malik, A. Mohamed, M. Rabbat, M. Sanjabi, L. Xiao. ICML 2022.
    https://arxiv.org/abs/2204.03809
"""

from partita.methods.fedalt import PAPER
from partita.methods.fedavg import LocalSGD
from partita.methods.named import FINETUNE_RATE, NamedMethod

METHOD = NamedMethod(
    title="FT (part.)",
    update=LocalSGD,
    citation=PAPER,
    fixed={"personalize.rounds": 0},
    rates=(FINETUNE_RATE,),
    compared_by_default=True,
    in_partial_table=True,
    order=23,
)
