"""Networks, each naming its input part and its output part."""
