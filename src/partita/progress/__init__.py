"""Feedback while a run goes on: display, watchers, TensorBoard."""
