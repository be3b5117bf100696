"""The columns of a comparison's table `methods`: the name, the heading and the meaning of each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from partita.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Column:
    """A column, by the name that `compare.columns` gives it.

    The texts may contain the fields {metric}, {percentile}, {evaluated}, {baseline}, {reference} and {alone}:
    the metric, which percentile over devices is the bad end, the devices evaluated during training, and the
    titles of methods.
    """

    name: str
    heading: str
    meaning: str
    """Sentences below a table that shows the column."""


_TOTALS = "Rounds and traffic are those of training, including the training that a method continues."
_REACHED = (
    "To reach {reference}: the rounds and the traffic of training, including the training that a method "
    "continues, up to the first evaluation that is at least as good as the final one of {reference}, on "
    "{evaluated}; mean over the seeds that reach it."
)
_HELPED = (
    "Better, worse and same: devices with a strictly better, a strictly worse or the same metric as under "
    "{reference} with the same seed, averaged over seeds."
)
_QUARTILES = (
    "Q1 to Q4: the weighted mean over a quarter of the devices, averaged over seeds, from those with the "
    "fewest training examples to those with the most. Devices with the same number stay together, so "
    "quarters may differ in size, and an empty one is left out; fewer than 4 devices, or devices that all "
    "have the same number, have none."
)
_EVERY = (
    Column(
        "kept",
        "values kept on a device",
        "Values kept on a device: personal parameters and any other state of the method, after the last "
        "stage.",
    ),
    Column("metric", "{metric}", ""),
    Column("rounds", "rounds", _TOTALS),
    Column("mb", "MB up and down", _TOTALS),
    Column(
        "seconds",
        "device-seconds",
        "Device-seconds: processor time of the visits in training, including the training that a method "
        "continues.",
    ),
    Column(
        "difference",
        "difference from {baseline}",
        "Difference: paired over devices and seeds, positive if better, for the same personal part if both "
        "methods have it, with its 95 % confidence interval.",
    ),
    Column("rounds_to_reach", "rounds to reach {reference}", _REACHED),
    Column("mb_to_reach", "MB to reach {reference}", _REACHED),
    Column(
        "memory",
        "kB of memory in a visit",
        "Memory in a visit: counted, not measured, at the batch size of the run: the model, its gradients, "
        "the shared part as received, the state of the optimizer and the method, and what backpropagation "
        "keeps; the largest over all stages, including the training that a method continues.",
    ),
    Column(
        "worth_joining",
        "worth joining",
        "Worth joining: devices with a strictly better metric than under both {alone} (training alone) and "
        "{reference} (the global model) with the same seed, of those that have all three; averaged over "
        "seeds.",
    ),
    Column("helped", "better than {reference}", _HELPED),
    Column("hurt", "worse than {reference}", _HELPED),
    Column("same", "same as {reference}", _HELPED),
    Column(
        "percentile",
        "{percentile} percentile of {metric}",
        "The {percentile} percentile is over devices: 9 of 10 devices reach it.",
    ),
    Column("quartile1", "Q1 (fewest examples)", _QUARTILES),
    Column("quartile2", "Q2", _QUARTILES),
    Column("quartile3", "Q3", _QUARTILES),
    Column("quartile4", "Q4 (most examples)", _QUARTILES),
)
COLUMNS = {column.name: column for column in _EVERY}
"""All columns besides the method and its personal part, in the order of the CSV."""
DEFAULT = ("metric", "difference", "kept", "rounds", "mb")
"""The columns that a table shows unless others are chosen."""


def chosen(names: Iterable[str]) -> Sequence[str]:
    """Return the names of the columns to show, each once; the default ones if none is given.

    Raises:
        ConfigError: there is no such column.
    """
    given = tuple(dict.fromkeys(names))
    for name in given:
        if name not in COLUMNS:
            near = did_you_mean(name, list(COLUMNS))
            raise ConfigError(f"There is no column {name!r}. Known: {', '.join(COLUMNS)}.{near}")
    return given or DEFAULT
