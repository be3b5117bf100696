"""Partita in Python: runs, comparisons and searches of a task of one's own, and their results."""
