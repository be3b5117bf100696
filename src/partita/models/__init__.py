"""Networks, each naming its input part, its output part and where it takes adapters."""
