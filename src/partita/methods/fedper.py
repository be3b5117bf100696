"""FedPer: simultaneous updates, with the head personal.

Federated Learning with Personalization Layers
    M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary. 2019.
    https://arxiv.org/abs/1912.00818
"""

from partita.methods.fedsim import LocalSim
from partita.methods.named import HEAD_APART, Citation, NamedMethod

METHOD = NamedMethod(
    title="FedPer",
    update=LocalSim,
    citation=Citation(
        key="arivazhagan2019",
        title="Federated Learning with Personalization Layers",
        authors="Manoj Ghuhan Arivazhagan and Vinay Aggarwal and Aaditya Kumar Singh and Sunav Choudhary",
        year=2019,
        arxiv="1912.00818",
    ),
    personal="head",
    fixed=HEAD_APART,
    order=30,
)
