"""Methods by name: each is an update of ours and the settings that make it what was published.

What a name fixes is put in the config in the place of what stands there; what it only suggests is put where
the config says nothing. So a run's own `config.toml` says all that the name meant.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from partita.errors import ConfigError

_PLAIN = "partita.methods.fedavg:LocalSGD"
_ALTERNATING = "partita.methods.fedalt:LocalAlt"
_SIMULTANEOUS = "partita.methods.fedsim:LocalSim"


@dataclass(frozen=True, kw_only=True)
class Named:
    """A method with a name of its own."""

    title: str
    """What tables call it."""
    local: str
    """The import path of what a device does in a training round."""
    cites: str = "pillutla2022"
    """The paper that it comes from, in `references.bib`; empty where it has none."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values, by key, without which it would be another method."""
    usual: Mapping[str, Any] = field(default_factory=dict)
    """Values that its paper uses, where the config has none."""
    follows: bool = False
    """With `full`, whether a device's model begins each time as the shared one is then."""

    @property
    def whole(self) -> bool:
        """Whether the name says which part is personal."""
        return "partition.personal" in self.fixed

    @property
    def keeps_state(self) -> bool:
        """Whether devices have a personal part to keep from one training round to the next."""
        stands = self.fixed.get("partition.personal") == "none" or "personalize.rounds" in self.fixed
        return not stands and "personalize.stateful" not in self.fixed


_HELD = {"personalize.personal_epochs": 0, "personalize.personal_steps": 0}
_NONE = {"partition.personal": "none", **_HELD}
_WHOLE = {"partition.personal": "full", "partition.proximal": 0.0, "finetune.baseline": False}
_STEP_C = {"personalize.rounds": 0}

NAMED: Mapping[str, Named] = {
    "fedavg": Named(title="FedAvg, continued", local=_PLAIN, cites="mcmahan2017", fixed=_NONE),
    "fedadam": Named(
        title="FedAdam, all rounds",
        local=_PLAIN,
        cites="reddi2021",
        fixed={**_NONE, "personalize.rounds": 0, "pretrain.server_optimizer": "fedadam"},
        usual={"pretrain.server_lr": 0.01},
    ),
    "fedprox": Named(
        title="FedProx",
        local=_PLAIN,
        cites="li2020",
        fixed=_NONE,
        usual={"personalize.proximal": 0.01},
    ),
    "scaffold": Named(
        title="SCAFFOLD",
        local="partita.methods.scaffold:LocalScaffold",
        cites="karimireddy2020",
        fixed={
            **_NONE,
            "personalize.weights": "equal",
            "personalize.optimizer": "sgd",
            "personalize.momentum": 0.0,
        },
    ),
    "local": Named(
        title="Local only",
        local=_PLAIN,
        cites="",
        fixed={**_WHOLE, "pretrain.rounds": 0, **_STEP_C},
    ),
    "finetune": Named(
        title="Finetune",
        local=_PLAIN,
        fixed={**_WHOLE, **_STEP_C},
    ),
    "ditto": Named(
        title="Ditto",
        local=_PLAIN,
        cites="li2021ditto",
        fixed={"partition.personal": "full", **_STEP_C},
    ),
    "pfedme": Named(
        title="pFedMe",
        local="partita.methods.pfedme:LocalMoreau",
        cites="dinh2020",
        fixed={"partition.personal": "full", "personalize.stateful": False},
        usual={"personalize.personal_steps": 5, "personalize.weights": "equal"},
        follows=True,
    ),
    "ft_part": Named(title="FT (part.)", local=_PLAIN, fixed=_STEP_C),
    "fedalt": Named(title="FedAlt", local=_ALTERNATING),
    "fedsim": Named(title="FedSim", local=_SIMULTANEOUS),
    "fedper": Named(
        title="FedPer",
        local=_SIMULTANEOUS,
        cites="arivazhagan2019",
        fixed={"partition.personal": "output"},
    ),
    "fedrep": Named(
        title="FedRep",
        local=_ALTERNATING,
        cites="collins2021",
        fixed={"partition.personal": "output"},
        usual={"personalize.personal_epochs": 10},
    ),
    "lg_fedavg": Named(
        title="LG-FedAvg",
        local=_SIMULTANEOUS,
        cites="liang2020",
        fixed={"partition.personal": "rest", "partition.shared": "output"},
    ),
    "fedbn": Named(
        title="FedBN", local=_SIMULTANEOUS, cites="li2021fedbn", fixed={"partition.personal": "norm"}
    ),
    "fedbabu": Named(
        title="FedBABU",
        local=_PLAIN,
        cites="oh2022",
        fixed={"partition.personal": "output", "personalize.stateful": False, **_HELD},
    ),
}
"""Every method that a config can name."""


SERVERS = {"fedavg": "FedAvg", "fedadam": "FedAdam", "fedadagrad": "FedAdagrad", "fedyogi": "FedYogi"}
"""What tables call a model that was pretrained with a server optimizer."""


def settle(values: dict[str, Any]) -> str:
    """Put what the name of a config's method means in its values, in place; return what that replaces."""
    section = values.get("personalize", {})
    name = section.get("method", "") if isinstance(section, dict) else ""
    named = NAMED.get(name) if isinstance(name, str) else None
    if named is None:
        return ""
    replaced: list[str] = []
    for key, value in named.fixed.items():
        home, leaf = _place(values, key)
        if home.get(leaf, value) != value:
            replaced.append(f"`{key}` = {value!r}, in the place of {home[leaf]!r}")
        home[leaf] = value
    for key, value in named.usual.items():
        home, leaf = _place(values, key)
        home.setdefault(leaf, value)
    return f"The method `{name}` has {'; '.join(replaced)}." if replaced else ""


def _place(values: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    section, _, leaf = key.partition(".")
    home = values.setdefault(section, {})
    if not isinstance(home, dict):
        raise ConfigError(f"`{section}` must be a section, got {home!r}.")
    return home, leaf
