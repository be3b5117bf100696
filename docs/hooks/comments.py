"""MkDocs hook: remove HTML comments, which are directives for the test that executes the docs."""

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page without its comments."""
    return re.sub(r"<!--.*?-->\n?", "", markdown, flags=re.DOTALL)
