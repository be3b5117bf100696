"""The partition of a model: its shared, personal and frozen parameters."""

from partita.partition.partition import Partition, Parts, uses_batch_statistics
from partita.partition.personalization import L2Center, Personalization, Regularization, personalization_of
from partita.partition.selection import PARTS, REST, Part, Selection

__all__ = [
    "PARTS",
    "REST",
    "L2Center",
    "Part",
    "Partition",
    "Parts",
    "Personalization",
    "Regularization",
    "Selection",
    "personalization_of",
    "uses_batch_statistics",
]
