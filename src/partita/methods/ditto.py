"""Ditto: every device fine-tunes a whole model with a proximal term to the pretrained one.

Ditto: Fair and Robust Federated Learning Through Personalization
    T. Li, S. Hu, A. Beirami, V. Smith. ICML 2021.
    https://arxiv.org/abs/2012.04221

`partition.proximal` is the paper's lambda. The original alternates between the shared and the personal
model; as the shared one does not depend on the personal ones, it is trained first here.
"""

from partita.methods.fedavg import LocalSGD
from partita.methods.named import FINETUNE_RATE, LAMBDAS, Citation, NamedMethod

METHOD = NamedMethod(
    title="Ditto",
    update=LocalSGD,
    citation=Citation(
        key="li2021ditto",
        title="Ditto: Fair and Robust Federated Learning Through Personalization",
        authors="Tian Li and Shengyuan Hu and Ahmad Beirami and Virginia Smith",
        venue="International Conference on Machine Learning",
        year=2021,
        arxiv="2012.04221",
    ),
    personal="full",
    fixed={"personalize.rounds": 0},
    rates=(FINETUNE_RATE,),
    search={"partition.proximal": LAMBDAS},
    compared_by_default=True,
    also_continued=True,
    order=21,
)
