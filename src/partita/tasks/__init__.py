"""What is learnt: data, model, loss and metrics together."""
