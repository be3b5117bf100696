"""The table of settings in which runs and comparisons differ."""

import json
from collections.abc import Sequence
from typing import Any

from partita.config.overrides import KEYS
from partita.report.side_by_side.sources import Source
from partita.report.tables.table import Table

_UNRELATED = ("name", "out", "made_with", "report")
"""Keys and sections that do not change a result."""
_COMPARE = "compare."
"""The beginning of the keys that only comparisons have."""


def settings_table(sources: Sequence[Source]) -> Table:
    """Return the settings that differ, with a column for each source; without rows if none does."""
    known = [_settings(source) for source in sources]
    keys = dict.fromkeys(key for own in known for key in own)
    if not all(any(key.startswith(_COMPARE) for key in own) for own in known):
        keys = [key for key in keys if not key.startswith(_COMPARE)]
    values = {key: [_text(own.get(key)) for own in known] for key in keys}
    return Table(
        name="settings",
        title="The settings of each folder that are not the same in all",
        columns=["key", *(source.name for source in sources)],
        rows=[[key, *texts] for key, texts in values.items() if len(set(texts)) > 1],
    )


def _settings(source: Source) -> dict[str, Any]:
    """Return the settings that may change a result, with digests in place of file names."""
    own = {key: value for key, value in source.settings.items() if key.split(".")[0] not in _UNRELATED}
    digests = {key: text for key, text in source.folder.values["made_with"].items() if key in KEYS}
    return {key: value for key, value in own.items() if key not in KEYS} | digests


def _text(value: Any) -> str | None:
    """Return a value as in a config, None if there is none.

    >>> _text("fedalt"), _text(True), _text(["a", "b"])
    ('fedalt', 'true', '["a", "b"]')
    """
    return value if isinstance(value, str) or value is None else json.dumps(value)
