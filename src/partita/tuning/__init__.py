"""Settings that do well on validation rows."""
