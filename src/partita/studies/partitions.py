"""The personal parts of a comparison: which ones it runs, what stays frozen, and which are the same."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from partita.config.partitions import build_partition, frozen_patterns
from partita.config.schema import Config, PartitionConfig
from partita.errors import ConfigError
from partita.models.parts import partition_names
from partita.partition import PARTS

if TYPE_CHECKING:
    from partita.studies.cells import Cell

PAPER = ("input", "output", "adapter")
"""The paper's personal parts."""


@dataclass(frozen=True)
class Compared:
    """The personal parts of a comparison."""

    names: Sequence[str]
    """The personal parts, for methods that do not fix theirs."""
    own: str
    """The config's own personal part: `partition.shared` and a frozen rest refer to it alone."""
    frozen: str | Sequence[str] = ()
    """The tensors that the config freezes, as all other partitions select them."""
    notes: Sequence[str] = ()
    """The reasons why the model's parts are left out."""


def compared_partitions(config: Config, model: nn.Module) -> Compared:
    """Return the personal parts that a config lists, by default its own and the paper's.

    Of the paper's, those that the model names and that are possible beside the config's frozen part.
    """
    own = label_of(config.partition.personal)
    frozen = frozen_patterns(config.partition, model)
    if config.compare.partitions:
        return Compared(config.compare.partitions, own, frozen)
    known = [part for part in PAPER if part in partition_names(model) and part != own]
    others = replace(config.partition, shared="rest", frozen=frozen)
    errors = {part: _error_of(replace(others, personal=part), model) for part in known}
    names = [part for part in PAPER if part == own or (part in known and not errors[part])]
    return Compared(
        names if own in (*names, "none") else [*names, own],
        own,
        frozen,
        [f"The personal part `{part}` is not compared: {error}" for part, error in errors.items() if error],
    )


def label_of(personal: Any) -> str:
    """Return the name of a personal part in tables, patterns with spaces between them.

    >>> label_of("output"), label_of(["stem.*", "head.*"])
    ('output', 'stem.* head.*')
    """
    return " ".join(map(str, personal)) if isinstance(personal, list) else str(personal)


def merge(cells: Sequence["Cell"], model: nn.Module) -> tuple[list["Cell"], list[str]]:
    """Return the cells without repeated ones, and a note on each partition that is the same as another.

    Cells of one method and seed are the same if their partitions select the same tensors.
    """
    selected: dict[str, Any] = {}
    kept: dict[Any, Cell] = {}
    notes: dict[str, None] = {}
    for cell in cells:
        try:
            settings = cell.config(out=Path()).partition
            key = repr(settings)
            if key not in selected:
                selected[key] = _selected_by(settings, model)
            same = selected[key]
        except ConfigError:  # The check of the cell says what is wrong with it.
            same = cell.partition
        first = kept.setdefault((cell.method, cell.seed, same), cell)
        if first.partition != cell.partition:
            both = f"`{cell.partition}` selects the same tensors as `{first.partition}`"
            notes[f"The personal part {both}: both are the row `{first.partition}`."] = None
    return list(kept.values()), list(notes)


def _selected_by(settings: PartitionConfig, model: nn.Module) -> Any:
    """Return the names and shapes of the tensors in each part."""
    partition = build_partition(settings, model).partition
    return tuple(tuple(partition.shapes(part).items()) for part in PARTS)


def _error_of(settings: PartitionConfig, model: nn.Module) -> str:
    """Return why a partition does not fit the model, empty if it does."""
    try:
        build_partition(settings, model)
    except ConfigError as error:
        return str(error)
    return ""
