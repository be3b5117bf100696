"""Computations without moving parameters, made only once."""
