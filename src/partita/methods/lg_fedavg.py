"""LG-FedAvg: simultaneous updates, with everything but the head personal.

Think Locally, Act Globally: Federated Learning with Local and Global Representations
    P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov, L.-P. Morency.
    2020.
    https://arxiv.org/abs/2001.01523

Each device learns a representation of its own, and all devices train the layers above it together. How many
layers those are is a choice in the paper; here it is the head.
"""

from partita.methods.fedsim import LocalSim
from partita.methods.named import HEAD_APART, Citation, NamedMethod

METHOD = NamedMethod(
    title="LG-FedAvg",
    update=LocalSim,
    citation=Citation(
        key="liang2020",
        title="Think Locally, Act Globally: Federated Learning with Local and Global Representations",
        authors="Paul Pu Liang and Terrance Liu and Liu Ziyin and Nicholas B. Allen and Randy P. Auerbach "
        "and David Brent and Ruslan Salakhutdinov and Louis-Philippe Morency",
        year=2020,
        arxiv="2001.01523",
    ),
    personal="rest",
    fixed={**HEAD_APART, "partition.shared": "head"},
    order=32,
)
