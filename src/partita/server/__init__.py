"""The server's turn."""
