"""Networks; each names its input part, its output part, its head and its adapters."""
