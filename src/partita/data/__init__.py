"""Data by device: tables, their index and splits, caches; importers of public formats."""
