"""Runs from TOML files: read into frozen dataclasses, then built into objects that never see a config."""
