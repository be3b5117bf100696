"""The page of several runs and comparisons, side by side."""
