"""The columns of a comparison's table `methods`: the name, the heading and the meaning of each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from partita.config.reading import did_you_mean
from partita.errors import ConfigError


@dataclass(frozen=True)
class Column:
    """A column, by the name that `compare.columns` gives it.

    The texts may contain the fields {metric}, {percentile}, {baseline}, {reference}, {matched} and {alone}:
    the metric, which percentile over devices is the bad end, and the titles of methods.
    """

    name: str
    heading: str
    meaning: str
    """Sentences below a table that shows the column."""


_TOTALS = "Rounds and traffic are those of training, including the training that a method continues."
_REACHED = (
    "To reach {matched}: the rounds and the traffic of training, including the training that a method "
    "continues, up to the first evaluation that is at least as good as the final one of {matched}, on the "
    "devices evaluated during training; mean over the seeds that reach it."
)
_HELPED = (
    "Helped and hurt: devices with a strictly better or worse metric than under {reference} with the same "
    "seed, averaged over seeds."
)
_QUARTILES = (
    "Quartiles: the weighted mean over a quarter of the devices, averaged over seeds; quartile 1 is the "
    "quarter with the fewest training examples. Devices with the same number are in the same one; fewer than "
    "4 devices, or devices that all have the same number, have none."
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
    Column("rounds_to_reach", "rounds to reach {matched}", _REACHED),
    Column("mb_to_reach", "MB to reach {matched}", _REACHED),
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
        "{matched} (the global model after the same rounds) with the same seed, of those that have all "
        "three; averaged over seeds.",
    ),
    Column("helped", "helped", _HELPED),
    Column("hurt", "hurt", _HELPED),
    Column("same", "same", _HELPED),
    Column(
        "percentile",
        "{percentile} percentile of {metric}",
        "The {percentile} percentile is over devices: 9 of 10 devices reach it.",
    ),
    Column("quartile1", "quartile 1", _QUARTILES),
    Column("quartile2", "quartile 2", _QUARTILES),
    Column("quartile3", "quartile 3", _QUARTILES),
    Column("quartile4", "quartile 4", _QUARTILES),
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
