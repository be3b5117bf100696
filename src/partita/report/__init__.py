"""The report of a run or a comparison: tables, charts and one self-contained HTML page."""
