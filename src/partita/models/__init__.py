"""Networks; each names its input part, its output part and its adapters."""
