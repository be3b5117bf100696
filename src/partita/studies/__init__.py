"""Methods x partitions x seeds, as tables."""
