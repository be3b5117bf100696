"""Public formats in, Parquet by device out."""
