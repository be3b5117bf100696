"""One device's turn."""
