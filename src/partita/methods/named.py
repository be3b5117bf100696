"""A method under a name: its update, and everything that commands, tables and searches need to know of it.

Most methods for personalization differ only in settings: which part is personal, in which order the parts
move, what a device keeps between rounds. So a method is an update and the settings that make it the
published one. Each module of this package that is a method has one, called `METHOD`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partita.methods.declared import LocalFn

SHARED_RATE, PERSONAL_RATE = "personalize.shared_lr", "personalize.personal_lr"
"""The learning rates of training rounds, for `NamedMethod.rates`."""
FINETUNE_RATE = "finetune.personal_lr"
"""The learning rate of fine-tuning, for `NamedMethod.rates`."""
RATES = (SHARED_RATE, PERSONAL_RATE, FINETUNE_RATE)
"""The learning rates of a method that trains both parts in rounds and then fine-tunes."""
LAMBDAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""The paper's grid for lambda, the strength of a proximal term, for `NamedMethod.search`."""
HEAD_APART: Mapping[str, Any] = {"partition.untie": True}
"""The settings of a method that puts the head in one part and the rest in another: a head that is tied, to
the embedding for example, gets a copy of its own."""


@dataclass(frozen=True, kw_only=True)
class Citation:
    """The paper that a method comes from, as BibTeX has it."""

    key: str
    """The key of the entry, such as "pillutla2022"."""
    title: str
    authors: str
    """All authors, with " and " between them."""
    year: int
    venue: str = ""
    """The conference or journal; empty for a preprint."""
    arxiv: str = ""
    """The arXiv identifier, such as "2204.03809"."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The amount of training that a comparison gives to each method that begins from the pretrained model."""

    rounds: int
    """Rounds of pretraining and of personalization, together."""
    passes: int
    """Passes over its training examples that a device makes in all stages, on average; at least 1."""
    pretrain: Mapping[str, Any]
    """The settings of pretraining, by key of `[pretrain]`."""


@dataclass(frozen=True, kw_only=True)
class NamedMethod:
    """A method that a config can name, by the name of its module or by its import path."""

    title: str
    """The name in tables and charts."""
    update: "LocalFn"
    """The device's update in a training round: from `personal` and `shared` steps to a `LocalUpdate`. Further
    arguments with defaults are the method's own hyperparameters, keys of `[personalize]`."""
    citation: Citation | None = None
    """The paper that it comes from."""
    personal: str = ""
    """The personal part of the method; empty: the config's `partition.personal`."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings, by dotted key, that define the method: they override the config's."""
    suggested: Mapping[str, Any] = field(default_factory=dict)
    """Settings, by dotted key, that its paper uses: they apply where the config has none."""
    rates: Sequence[str] = RATES
    """Dotted keys of the learning rates that `compare tune=N` tries, from a tenth of the config's value to
    ten times it; a rate that a config does not train with is left out."""
    search: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values, by dotted key, that `compare tune=N` tries besides the learning rates."""
    compared_by_default: bool = False
    """Whether a comparison that lists no methods runs it."""
    always_compared: bool = False
    """Whether every comparison runs it."""
    also_continued: bool = False
    """Whether a comparison runs it a second time, from the model of the round-matched reference, so that it
    has as many rounds behind it as methods that train rounds of their own."""
    in_partial_table: bool = False
    """Whether it is a column of the paper's table of methods for one and the same personal part."""
    order: int = 100
    """Its place among other methods in tables, lower first."""
    follows: bool = False
    """With `full`, whether a device that has kept no model starts from the current shared model."""
    from_scratch: Callable[[Budget], Mapping[str, Any]] | None = None
    """For a method that does not begin from a comparison's pretrained model: the settings, by dotted key,
    with which it trains as long as the other methods do; None for a key to leave out."""

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting that the name fixes, its personal part included."""
        return {**({"partition.personal": self.personal} if self.personal else {}), **self.fixed}

    @property
    def trains_rounds(self) -> bool:
        """Whether it trains in rounds of personalization."""
        return self.fixed.get("personalize.rounds") != 0

    @property
    def trains_alone(self) -> bool:
        """Whether devices never exchange anything."""
        return not self.trains_rounds and self.fixed.get("pretrain.rounds") == 0

    @property
    def is_stateful(self) -> bool:
        """Whether devices may keep a personal part from one training round to the next."""
        return self.personal != "none" and self.trains_rounds and "personalize.stateful" not in self.fixed

    @property
    def hyperparameters(self) -> dict[str, inspect.Parameter]:
        """The arguments of the update that are not given by each visit, by name."""
        try:
            arguments = inspect.signature(self.update, eval_str=True).parameters
        except (NameError, TypeError, ValueError):  # Built-in functions, names imported for type checkers.
            return {}
        stars = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        given = ("personal", "shared", "carried", "examples")
        if not {"personal", "shared"} <= arguments.keys():
            return {}  # Not an update: building the run says so.
        return {name: p for name, p in arguments.items() if name not in given and p.kind not in stars}
