"""FedRep: alternating updates, with the head personal and many epochs on it.

Exploiting Shared Representations for Personalized Federated Learning
    L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. ICML 2021.
    https://arxiv.org/abs/2102.07078
"""

from partita.methods.fedalt import LocalAlt
from partita.methods.named import HEAD_APART, Citation, NamedMethod

METHOD = NamedMethod(
    title="FedRep",
    update=LocalAlt,
    citation=Citation(
        key="collins2021",
        title="Exploiting Shared Representations for Personalized Federated Learning",
        authors="Liam Collins and Hamed Hassani and Aryan Mokhtari and Sanjay Shakkottai",
        venue="International Conference on Machine Learning",
        year=2021,
        arxiv="2102.07078",
    ),
    personal="head",
    fixed=HEAD_APART,
    suggested={"personalize.personal_epochs": 10},
    order=31,
)
