"""Which parameters are shared, personal or frozen."""

from partita.partition.partition import Partition, Parts, Pull, Regularization
from partita.partition.selection import PARTS, REST, Part, Selection

__all__ = ["PARTS", "REST", "Part", "Partition", "Parts", "Pull", "Regularization", "Selection"]
