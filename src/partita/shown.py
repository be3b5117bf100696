"""Text as it is shown: characters that cannot be printed are escaped.

Device ids and the names of methods and metrics come from users' data and code. XML does not allow control
characters, so no chart could be drawn with one; on a terminal they can move the cursor or reverse a line.
Every page, chart, table and message therefore shows such characters escaped, as Python does.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

_HIDDEN = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # Control characters.
    "\u2028\u2029"  # Ends of lines and paragraphs.
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # Directions of text.
    "\ufeff\ufff9-\ufffb"  # The byte order mark, annotations.
    "\ud800-\udfff\ufdd0-\ufdef"  # Surrogates and noncharacters.
    + "".join(f"{chr(0x10000 * plane + 0xFFFE)}{chr(0x10000 * plane + 0xFFFF)}" for plane in range(17))
    + "]"
)
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|\\)")
"""A text that looks like an escaped character, or like an escaped backslash."""
_LAYOUT = "\n\t"


def shown(text: str) -> str:
    r"""Return a text with the characters escaped that cannot be printed; a second time changes nothing.

    >>> print(shown("bell \x07, \ufffe"))
    bell \x07, \ufffe
    """
    return _HIDDEN.sub(lambda found: _escaped(found[0]), text)


def shown_lines(text: str) -> str:
    r"""Return a text of several lines in the same way, with its line breaks and tabs.

    >>> shown_lines("a\n\x1bb")
    'a\n\\x1bb'
    """
    return _HIDDEN.sub(lambda found: found[0] if found[0] in _LAYOUT else _escaped(found[0]), text)


def shown_id(device: str) -> str:
    r"""Return a device's id as it is shown: different ids stay different.

    The id of 4 characters that spell an escape gets another backslash, so that it is not taken for the id of
    one character that is shown like that.

    >>> print(shown_id("\x07"), shown_id(r"\x07"), shown_id(r"group\user"))
    \x07 \\x07 group\user
    """
    has_escapes = _HIDDEN.search(device) or _ESCAPE.search(device)
    return shown(device.replace("\\", "\\\\") if has_escapes else device)


def shown_in(value: Any) -> Any:
    r"""Return a value with all texts in it as they are shown: in mappings, sequences and dataclasses.

    >>> shown_in({"ids": ["a\x00"], "count": 1})
    {'ids': ['a\\x00'], 'count': 1}
    """
    if isinstance(value, str):
        return shown(value)
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, Mapping):
        return {shown_in(key): shown_in(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [shown_in(each) for each in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **{name: shown_in(own) for name, own in fields.items()})
    return value


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
