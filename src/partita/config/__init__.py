"""A run from a TOML file: read into frozen dataclasses, built into objects, which never see a config."""
