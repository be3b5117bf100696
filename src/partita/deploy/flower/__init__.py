"""A Flower app: Flower's grid carries the orders and replies of a run instead of our own HTTPS."""
