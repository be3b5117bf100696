"""Which values to try next: all of them in turn, or as many as wanted, by what the ones before gave."""

import itertools
import random
from collections.abc import Mapping
from typing import Any

from partita.studies.search_space import Search

_KEPT = 67.0
"""The share of trials, in percent, that a trial must be among half-way to go on."""
_PATIENCE = 3
"""Trials that are done in full before any is given up."""


class Candidates:
    """Asks Optuna what to try next, and never for the same again: it would give the same."""

    def __init__(
        self,
        optuna: Any,
        search: Search,
        *,
        own: Mapping[str, Any],
        direction: str,
        seed: int,
        trials: int,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._states = optuna.trial.TrialState
        self._search = search
        self._left = [dict(zip(search, c, strict=True)) for c in itertools.product(*search.values())]
        self.count = min(trials or len(self._left), len(self._left))
        self._all = self.count == len(self._left)
        self._first: Mapping[str, Any] | None = None
        if not self._all:
            random.Random(seed).shuffle(self._left)
            # What the config says is tried first: tuning should not end below it.
            self._left.sort(key=lambda choice: choice != own)
            self._first = self._left[0] if self._left[0] == own else None
        self._study = optuna.create_study(
            direction={"up": "maximize", "down": "minimize"}[direction],
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=optuna.pruners.PercentilePruner(_KEPT, n_startup_trials=_PATIENCE),
        )

    @property
    def can_give_up(self) -> bool:
        """Whether there are enough trials to tell the hopeless by: to look at one on its way takes time."""
        return self.count > _PATIENCE

    def ask(self) -> tuple[Any, dict[str, Any]]:
        """Return a trial of Optuna's, and its values: where all are wanted, those whose turn it is."""
        if self._all or self._first:
            self._study.enqueue_trial(self._left[0])
            self._first = None
        asked, choice = self._asked()
        if choice not in self._left:
            self._study.tell(asked, state=self._states.FAIL)
            self._study.enqueue_trial(self._left[0])
            asked, choice = self._asked()
        self._left.remove(choice)
        return asked, choice

    def tell(self, asked: Any, value: float | None) -> None:
        """Tell Optuna what a trial gave, None where it came to no end."""
        state = self._states.PRUNED if value is None else self._states.COMPLETE
        self._study.tell(asked, value, state=state)

    def _asked(self) -> tuple[Any, dict[str, Any]]:
        asked = self._study.ask()
        choices = self._search.items()
        return asked, {key: asked.suggest_categorical(key, list(values)) for key, values in choices}
