"""Progress of a run while it is running: display, watchers, TensorBoard."""
