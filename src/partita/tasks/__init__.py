"""What is learned: data, model, loss and metrics together."""
