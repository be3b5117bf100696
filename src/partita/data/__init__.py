"""Data by device."""
