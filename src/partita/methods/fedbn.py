"""FedBN: simultaneous updates, with every normalization layer personal, statistics included.

FedBN: Federated Learning on Non-IID Features via Local Batch Normalization
    X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou. ICLR 2021.
    https://arxiv.org/abs/2102.07623
"""

from partita.methods.fedsim import LocalSim
from partita.methods.named import Citation, NamedMethod

METHOD = NamedMethod(
    title="FedBN",
    update=LocalSim,
    citation=Citation(
        key="li2021fedbn",
        title="{FedBN}: Federated Learning on Non-{IID} Features via Local Batch Normalization",
        authors="Xiaoxiao Li and Meirui Jiang and Xiaofei Zhang and Michael Kamp and Qi Dou",
        venue="International Conference on Learning Representations",
        year=2021,
        arxiv="2102.07623",
    ),
    personal="norm",
    order=33,
)
