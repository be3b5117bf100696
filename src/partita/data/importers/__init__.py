"""Importers: public datasets in their own formats in, Parquet tables by device out."""
