"""How one device learns."""
