"""Where devices run."""
