"""FedProx: FedAvg with a proximal term that keeps u close to the u that the server sent.

Federated Optimization in Heterogeneous Networks
    T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith. MLSys 2020.
    https://arxiv.org/abs/1812.06127
"""

from partita.methods.fedavg import NO_PERSONAL_STEPS, LocalSGD
from partita.methods.named import LAMBDAS, SHARED_RATE, Citation, NamedMethod

METHOD = NamedMethod(
    title="FedProx",
    update=LocalSGD,
    citation=Citation(
        key="li2020",
        title="Federated Optimization in Heterogeneous Networks",
        authors="Tian Li and Anit Kumar Sahu and Manzil Zaheer and Maziar Sanjabi and Ameet Talwalkar and "
        "Virginia Smith",
        venue="Conference on Machine Learning and Systems",
        year=2020,
        arxiv="1812.06127",
    ),
    personal="none",
    fixed=NO_PERSONAL_STEPS,
    suggested={"personalize.proximal": 0.01},
    rates=(SHARED_RATE,),
    search={"personalize.proximal": LAMBDAS},
    order=13,
)
