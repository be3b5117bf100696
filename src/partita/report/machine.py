"""Tables as values, for programs."""

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from partita.report.sheets import Entry, Sheet


def sheet_values(sheet: Sheet) -> dict[str, Any]:
    """Return a table as values that JSON has: its title, its rows by column, its notes."""
    rows = [dict(zip(sheet.columns, map(_value, row), strict=True)) for row in sheet.rows]
    return {"title": sheet.title, "rows": rows, "notes": list(sheet.notes)}


def _value(entry: Entry) -> str | float | Mapping[str, Any] | None:
    """Return an entry; one that has parts by their names."""
    return asdict(entry) if is_dataclass(entry) else entry
