"""What does not move, computed only once."""
