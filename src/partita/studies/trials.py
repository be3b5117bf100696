"""The trials of a search: which values to try next, and when to stop a trial early."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partita.config.changes import parse_value
from partita.errors import ConfigError, needed
from partita.protocol import Stage
from partita.training.evaluation import combined_mean
from partita.training.journal import RoundRow

SearchSpace = Mapping[str, Sequence[Any]]
"""The values to try, by dotted key of the config."""
_NOT_SEARCHED = ("seed", "evaluate.", "task.validation", "out", "name", "compare.", "workers")
"""Keys that must be the same in all trials."""
_KEPT = 67.0
"""Percentage of trials that continue at each check; the others are stopped."""
_STOPPED = "stopped after"
"""The beginning of the status of a trial that was stopped early."""
_MAX_ROUNDS = 10**9
"""More than the rounds of any stage."""
_FULL_TRIALS = 3
"""Number of trials that run to the end before any is stopped."""
_RANDOM_TRIALS = 10
"""Number of trials whose values are random; those of later ones depend on all results before."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One choice of values, and its result."""

    number: int
    choice: Mapping[str, Any]
    value: float | None
    """The metric on validation rows after the last stage; None if the trial was stopped or failed."""
    status: str
    """How the trial ended."""

    @property
    def has_failed(self) -> bool:
        """Whether it has no result for another reason than that it was stopped early."""
        return self.value is None and not self.status.startswith(_STOPPED)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The result of a search."""

    metric: str
    trials: Sequence[Trial]
    best: Trial
    warnings: Sequence[str] = ()
    """Reasons to doubt that the best values are the best."""


def trials_from(values: Mapping[str, Any]) -> Tuned:
    """Return a search's trials from the values of `dataclasses.asdict`."""
    trials = [Trial(**trial) for trial in values["trials"]]
    return Tuned(**{**values, "trials": trials, "best": Trial(**values["best"])})


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """Return the overrides with one value, and the search space of those with several.

    >>> split_arguments(["seed=2", "finetune.personal_lr=0.1,0.01"])
    (['seed=2'], {'finetune.personal_lr': [0.1, 0.01]})
    """
    overrides: list[str] = []
    space: dict[str, list[Any]] = {}
    for argument in arguments:
        key, _, text = argument.partition("=")
        if "," in text and text[0] not in "[{\"'":
            space[key] = list(dict.fromkeys(parse_value(part) for part in text.split(",") if part))
        else:
            overrides.append(argument)
    return overrides, space


def check_space(space: SearchSpace, trials: int) -> None:
    """Raise if there is nothing to search, or a key or a value cannot be searched."""
    if not space:
        raise ConfigError("There is nothing to search: give a key several values, `key=v1,v2`.")
    if trials < 0:
        raise ConfigError(f"`trials` must be 0 (every combination) or above, got {trials}.")
    for key, choices in space.items():
        if key.startswith(_NOT_SEARCHED):
            raise ConfigError(f"`{key}` cannot be searched: it must be the same in all trials.")
        odd = [choice for choice in choices if not isinstance(choice, str | int | float)]
        if odd:
            raise ConfigError(f"The values of `{key}` must be numbers or strings, got {odd[0]!r}.")


def ends_of(trials: Sequence[Trial], best: Trial) -> dict[str, str]:
    """Return "lowest" or "highest" by key, for each number of the best trial at an end of those tried.

    There is no end at 0, since no setting is negative, and none at a `patience` of 1, since 0 is no patience.
    """
    ends: dict[str, str] = {}
    for key, value in best.choice.items():
        if isinstance(value, str | bool) or value == 0:
            continue
        tried = {trial.choice[key] for trial in trials if not isinstance(trial.choice[key], str)}
        is_lowest = value == min(tried, default=value)
        if is_lowest and value == 1 and key.endswith(".patience"):
            continue
        if len(tried) > 1 and (is_lowest or value == max(tried)):
            ends[key] = "lowest" if is_lowest else "highest"
    return ends


def warn_of_ends(trials: Sequence[Trial], best: Trial) -> Iterator[str]:
    """Yield a sentence for each number of the best trial that is the lowest or the highest tried.

    >>> tried = [Trial(number=n, choice={"rate": n / 10}, value=n, status="done") for n in (1, 2, 3)]
    >>> list(warn_of_ends(tried, tried[2]))
    ['The best `rate`, 0.3, is the highest that was tried: a higher one may be better.']
    """
    for key, end in ends_of(trials, best).items():
        beyond = end.removesuffix("est") + "er"
        value = best.choice[key]
        yield f"The best `{key}`, {value}, is the {end} that was tried: a {beyond} one may be better."


class Sampler:
    """Chooses the values of the next trial with Optuna, none of them twice.

    Args:
        space: the values to try.
        own: the config's own values, which are tried first unless every combination is: the result of a
            search should not be worse than the config it began with.
        direction: "up" if a higher metric is better, else "down".
        seed: the seed of random choices.
        trials: number of trials; 0: every combination.
    """

    def __init__(
        self, space: SearchSpace, *, own: Mapping[str, Any], direction: str, seed: int, trials: int
    ) -> None:
        optuna = needed("optuna", by="Tuning", extra="tune")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._states = optuna.trial.TrialState
        self._space = space
        self._left = [dict(zip(space, choice, strict=True)) for choice in itertools.product(*space.values())]
        self.trials = min(trials or len(self._left), len(self._left))
        self._in_order = self.trials == len(self._left)
        self._own_first = False
        self._chosen, self._recorded = 0, 0
        if not self._in_order:
            random.Random(seed).shuffle(self._left)
            self._left.sort(key=lambda choice: choice != own)
            self._own_first = self._left[0] == own
        self._study = optuna.create_study(
            direction={"up": "maximize", "down": "minimize"}[direction],
            sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=_RANDOM_TRIALS),
            pruner=optuna.pruners.PercentilePruner(_KEPT, n_startup_trials=_FULL_TRIALS),
        )

    @property
    def stops_early(self) -> bool:
        """Whether there are enough trials to stop the worst of them early."""
        return self.trials > _FULL_TRIALS

    @property
    def can_choose(self) -> bool:
        """Whether a trial is left whose values can be chosen now.

        Most are the same whatever the trials before it result in. The others have to wait for these results.
        """
        is_free = self._in_order or self._chosen < _RANDOM_TRIALS
        return self._chosen < self.trials and (is_free or self._recorded == self._chosen)

    def next(self) -> tuple[Any, dict[str, Any]]:
        """Return the next trial of Optuna's and its values; `can_choose` must be true."""
        if self._in_order or self._own_first:
            self._study.enqueue_trial(self._left[0])
            self._own_first = False
        trial, choice = self._ask()
        if choice not in self._left:
            self._study.tell(trial, state=self._states.FAIL)
            self._study.enqueue_trial(self._left[0])
            trial, choice = self._ask()
        self._left.remove(choice)
        self._chosen += 1
        return trial, choice

    def record(self, trial: Any, value: float | None) -> None:
        """Record the metric of a trial, None if it has none; trials must be recorded in their order."""
        self._recorded += 1
        state = self._states.PRUNED if value is None else self._states.COMPLETE
        self._study.tell(trial, value, state=state)

    def _ask(self) -> tuple[Any, dict[str, Any]]:
        trial = self._study.ask()
        choices = self._space.items()
        return trial, {key: trial.suggest_categorical(key, list(values)) for key, values in choices}


class Judge:
    """Decides from the rounds of one trial whether it is among the worst, and is stopped.

    Args:
        trial: Optuna's trial.
    """

    def __init__(self, trial: Any) -> None:
        self._trial = trial
        self._evaluated: list[tuple[float, float]] = []
        self._step = -1
        self._rounds = 0

    def note(self, line: RoundRow) -> str:
        """Take note of the next round in place, and return the status of a trial that is stopped after it."""
        self._rounds += 1
        if line["work"] == "evaluate":
            if (step := _step_of(line)) != self._step:  # Not a further block of the last evaluation.
                self._step = step
                self._evaluated.clear()
            self._evaluated += [(line["metric"], line["weight"])] if "metric" in line else []
        elif (measured := combined_mean(self._evaluated)) is not None:
            self._evaluated.clear()
            self._trial.report(measured[0], self._step)
            if self._trial.should_prune():
                return f"{_STOPPED} {self._rounds} rounds"
        return ""


def _step_of(line: RoundRow) -> int:
    """Return a number for an evaluation, the same in all trials, however early their stages stop."""
    in_stage = _MAX_ROUNDS - 1 if line["final"] else line["round"]
    return list(Stage).index(Stage(line["stage"])) * _MAX_ROUNDS + in_stage
