"""Models leave the run: as files, as programs, and as predictions for new rows."""
