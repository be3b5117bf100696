"""What came out."""
