"""A run on disk: its folder, its journal, its fingerprint."""
