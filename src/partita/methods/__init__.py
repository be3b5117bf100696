"""How one device learns: one method, one file."""
