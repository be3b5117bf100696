"""Tasks: data, model, loss and metrics together."""
