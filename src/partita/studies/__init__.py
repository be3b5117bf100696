"""Many runs: comparisons of methods, partitions and seeds, and searches for settings."""
