"""The server optimizers that a config can name, listed without importing torch."""

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT = "fedavg"
"""The server optimizer of a config that names none."""


@dataclass(frozen=True, kw_only=True)
class NamedOptimizer:
    """A server optimizer under a name."""

    path: str
    """The import path of its class."""
    title: str
    """The name in tables of a model that was trained with it alone."""
    cites: str
    """The BibTeX key of its paper, which is also the paper of a method."""


OPTIMIZERS: Mapping[str, NamedOptimizer] = {
    "fedavg": NamedOptimizer(path="partita.server.optimizers:Averaging", title="FedAvg", cites="mcmahan2017"),
    "fedadam": NamedOptimizer(path="partita.server.optimizers:FedAdam", title="FedAdam", cites="reddi2021"),
    "fedadagrad": NamedOptimizer(
        path="partita.server.optimizers:Adagrad", title="FedAdagrad", cites="reddi2021"
    ),
    "fedyogi": NamedOptimizer(path="partita.server.optimizers:Yogi", title="FedYogi", cites="reddi2021"),
    "adam": NamedOptimizer(path="partita.server.optimizers:Adam", title="Server Adam", cites="pillutla2022"),
}
"""Every server optimizer with a name of its own; others are named by import path."""

PATHS: Mapping[str, str] = {name: optimizer.path for name, optimizer in OPTIMIZERS.items()}
"""Import paths by name."""


def title_of(name: str) -> str:
    """Return the title of a model that was trained with a server optimizer alone.

    >>> title_of(DEFAULT), title_of("my.module:Mine")
    ('FedAvg', 'Mine')
    """
    return OPTIMIZERS[name].title if name in OPTIMIZERS else name.rpartition(":")[2]


def cites_of(name: str) -> str:
    """Return the BibTeX key of a server optimizer's paper, empty for one by import path."""
    return OPTIMIZERS[name].cites if name in OPTIMIZERS else ""
