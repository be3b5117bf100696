"""Importers: public data sets in their own formats in, Parquet tables by device out."""
